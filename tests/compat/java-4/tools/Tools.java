import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.StreamSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Command-line tools of Apache Kafka, one after the other in this process, because each in its own would take a second to start.
 *
 * <p>A line of standard input is {@code {"tool": CLASS, "arguments": […], "input": TEXT}}; the answer on standard output is
 * {@code {"code": EXIT CODE, "out": TEXT, "error": TEXT}}.
 */
public final class Tools {
    /** A tool that ends the process ends itself only. An error, so that few catch it on its way. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1L;

        private Ended() {
            super("the tool has ended", null, false, false);
        }
    }

    /** Goes where it is told, also for those who took `System.out` when their class was loaded. */
    private static final class Switch extends OutputStream {
        private ByteArrayOutputStream into = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            into.write(one);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            into.write(bytes, from, count);
        }

        synchronized String taken() {
            String text = into.toString(StandardCharsets.UTF_8);
            into = new ByteArrayOutputStream();
            return text;
        }
    }

    /** What the tool would have the end of its process do: the console producer sends its last records then. */
    private static final List<Runnable> hooks = new ArrayList<>();

    private static Integer code;

    public static void main(String[] none) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        Switch out = new Switch();
        Switch error = new Switch();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(error, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = json.readTree(line);
            System.setIn(new ByteArrayInputStream(command.path("input").asText("").getBytes(StandardCharsets.UTF_8)));
            String[] arguments =
                    StreamSupport.stream(command.get("arguments").spliterator(), false).map(JsonNode::asText).toArray(String[]::new);
            int ended = run(command.get("tool").asText(), arguments);
            answers.println(json.writeValueAsString(Map.of("code", ended, "out", out.taken(), "error", error.taken())));
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments) throws Exception {
        code = null;
        hooks.clear();
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
                return 1;
            }
        }
        hooks.forEach(Runnable::run);
        return code == null ? 0 : code;
    }

    private static void end(int status, String message) {
        // Some catch what is thrown here and end a second time.
        if (code == null) {
            code = status;
        }
        throw new Ended();
    }
}
