import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;

/**
 * Two instances of a word count with Kafka Streams: {@code WordCount BOOTSTRAP PREFIX STATE-FOLDER [NAME=VALUE …]}.
 *
 * <p>The values of {@code PREFIX-lines} are split at blanks, the words counted in memory by way of a repartition topic, and each new count
 * written to {@code PREFIX-counts}; a second store counts by hour. Lines of standard input are commands, each answered by one line of JSON on
 * standard output: {@code status} and {@code close INSTANCE}. The end of standard input closes what is open and ends the process.
 */
public final class WordCount {
    private static final int INSTANCES = 2;
    private static final Duration CLOSED_WITHIN = Duration.ofSeconds(30);

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String prefix = arguments[1];
        List<KafkaStreams> instances = new ArrayList<>();
        for (int number = 0; number < INSTANCES; number++) {
            Properties settings = new Properties();
            settings.putAll(
                    Map.of(
                            "application.id", prefix,
                            "bootstrap.servers", bootstrap,
                            "client.id", prefix + "-instance-" + number,
                            "state.dir", arguments[2] + "/" + number));
            for (String setting : Arrays.asList(arguments).subList(3, arguments.length)) {
                settings.put(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
            }
            KafkaStreams instance = new KafkaStreams(topology(prefix), settings);
            instance.setUncaughtExceptionHandler(
                    error -> {
                        error.printStackTrace();
                        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                    });
            instances.add(instance);
        }
        instances.forEach(KafkaStreams::start);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            System.out.println(Json.of(line.equals("status") ? status(instances) : close(instances, line)));
        }
        instances.forEach(instance -> instance.close(CLOSED_WITHIN));
    }

    private static Topology topology(String prefix) {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> words =
                builder.stream(prefix + "-lines", Consumed.with(text, text))
                        .flatMapValues(line -> List.of(line.split(" ")))
                        .groupBy((key, word) -> word, Grouped.with("words", text, text));
        words.count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(text).withValueSerde(Serdes.Long()))
                .toStream()
                .to(prefix + "-counts", Produced.with(text, Serdes.Long()));
        Duration hour = Duration.ofHours(1);
        words.windowedBy(TimeWindows.ofSizeWithNoGrace(hour))
                .count(
                        Materialized.<String, Long>as(Stores.inMemoryWindowStore("hourly", hour.multipliedBy(2), hour, false))
                                .withKeySerde(text)
                                .withValueSerde(Serdes.Long()));
        return builder.build();
    }

    /** The state of each instance, and how many tasks it runs. */
    private static Map<String, Object> status(List<KafkaStreams> instances) {
        return Map.of(
                "states", instances.stream().map(KafkaStreams::state).toList(),
                "tasks", instances.stream().map(WordCount::tasks).toList());
    }

    private static int tasks(KafkaStreams instance) {
        if (instance.state() != KafkaStreams.State.RUNNING) {
            return 0;
        }
        return instance.metadataForLocalThreads().stream().mapToInt(thread -> thread.activeTasks().size()).sum();
    }

    private static Map<String, Object> close(List<KafkaStreams> instances, String command) {
        int number = Integer.parseInt(command.substring("close ".length()));
        CloseOptions leaving = CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP);
        return Map.of("closed", instances.get(number).close(leaving.withTimeout(CLOSED_WITHIN)));
    }
}
