import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Makes clients, plays steps with a deadline each, and prints what they saw. */
final class Play implements AutoCloseable {
    static final Duration POLL = Duration.ofMillis(200);
    private static final long STEP_WITHIN_S = 30;
    /** Shorter than a step, so that a client says what it waited for. */
    private static final long WAIT_MS = 20_000;
    private static final long LOOK_EVERY_MS = 50;

    final String bootstrap;
    final String prefix;
    final Admin admin;
    private final ExecutorService threads =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread = new Thread(task);
                        thread.setDaemon(true);
                        return thread;
                    });

    Play(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
        this.admin = Admin.create(properties(Map.of("default.api.timeout.ms", "20000", "request.timeout.ms", "10000")));
    }

    String name(String end) {
        return prefix + "-" + end;
    }

    void step(String name, Step step) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("step", name);
        Future<Object> played = threads.submit((Callable<Object>) step::play);
        try {
            line.put("saw", played.get(STEP_WITHIN_S, TimeUnit.SECONDS));
        } catch (ExecutionException error) {
            error.getCause().printStackTrace();
            line.put("failed", String.valueOf(error.getCause()));
        } catch (TimeoutException error) {
            played.cancel(true);
            line.put("failed", "no end after " + STEP_WITHIN_S + " s");
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
        System.out.println(Json.of(line));
    }

    /** What a call that must fail failed with, as the protocol names it. */
    static Map<String, Object> error(Step call) throws Exception {
        try {
            return Map.of("no_error", String.valueOf(call.play()));
        } catch (ExecutionException error) {
            return Map.of("error", Errors.forException(error.getCause()).name());
        }
    }

    /** The first look that is as wanted, or the last one before the deadline. */
    static <T> T until(Callable<T> look, Predicate<T> wanted) throws Exception {
        long giveUpMs = nowMs() + WAIT_MS;
        T seen = look.call();
        while (!wanted.test(seen) && nowMs() < giveUpMs) {
            Thread.sleep(LOOK_EVERY_MS);
            seen = look.call();
        }
        return seen;
    }

    /** Monotonic. */
    static long nowMs() {
        return System.nanoTime() / 1_000_000;
    }

    static boolean isBefore(long deadlineMs) {
        return nowMs() < deadlineMs;
    }

    static long deadlineMs() {
        return nowMs() + WAIT_MS;
    }

    /** Made and seen by whom is asked. */
    TopicPartition create(String end) throws Exception {
        admin.createTopics(java.util.List.of(new NewTopic(name(end), 1, (short) 1))).all().get();
        partitions(name(end), 1);
        return new TopicPartition(name(end), 0);
    }

    /** How many partitions the topic is described with, once it is `wanted`. */
    int partitions(String topic, int wanted) throws Exception {
        return until(
                () -> {
                    try {
                        return admin.describeTopics(java.util.List.of(topic)).allTopicNames().get().get(topic).partitions().size();
                    } catch (ExecutionException error) {
                        // A broker of Apache Kafka hears of a new topic a little later than the controller that made it.
                        if (Errors.forException(error.getCause()) == Errors.UNKNOWN_TOPIC_OR_PARTITION) {
                            return -1;
                        }
                        throw error;
                    }
                },
                seen -> seen == wanted);
    }

    KafkaProducer<String, String> producer(Map<String, String> settings) {
        Map<String, String> all = new HashMap<>(Map.of("acks", "all", "delivery.timeout.ms", "20000", "request.timeout.ms", "10000"));
        all.putAll(settings);
        return new KafkaProducer<>(properties(all), new StringSerializer(), new StringSerializer());
    }

    KafkaConsumer<String, String> consumer(Map<String, String> settings) {
        Map<String, String> all =
                new HashMap<>(Map.of("enable.auto.commit", "false", "auto.offset.reset", "earliest", "default.api.timeout.ms", "20000"));
        all.putAll(settings);
        return new KafkaConsumer<>(properties(all), new StringDeserializer(), new StringDeserializer());
    }

    /** One that reads these partitions from their beginnings, in no group. */
    KafkaConsumer<String, String> reader(Collection<TopicPartition> partitions) {
        KafkaConsumer<String, String> consumer = consumer(Map.of());
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        return consumer;
    }

    private Properties properties(Map<String, String> settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.putAll(settings);
        return properties;
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(5));
        threads.shutdownNow();
    }
}
