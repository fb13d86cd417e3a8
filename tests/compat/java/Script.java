import java.util.List;
import java.util.Map;

/** The scenario of README.md, by the Java clients. Every class beside it knows some of the steps. */
public final class Script {
    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String prefix = arguments[1];
        try (Play play = new Play(bootstrap, prefix)) {
            for (Map<String, Step> steps :
                    List.of(new Topics(play).steps(), new Records(play).steps(), new Groups(play).steps(), new Ends(play).steps())) {
                steps.forEach(play::step);
            }
        }
        // What the library left running must not keep the process.
        System.exit(0);
    }
}
