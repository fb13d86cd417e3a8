import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produce ten orders and read them back in a consumer group, with Apache Kafka's own client.
 *
 * <pre>cd examples/java && mvn -q compile exec:java -Dexec.args=localhost:9092</pre>
 *
 * Run it again: the group goes on where it committed, so each run prints its own ten orders.
 */
public final class OrdersGroup {
    private static final String TOPIC = "orders-java";
    private static final String GROUP = "billing-java";
    private static final int ORDERS = 10;
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments.length > 0 ? arguments[0] : "localhost:9092";
        createTopic(bootstrap);
        produce(bootstrap);
        consume(bootstrap);
    }

    private static void createTopic(String bootstrap) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            // The object store keeps records durable; the replication factor is stored and has no effect.
            admin.createTopics(List.of(new NewTopic(TOPIC, 3, (short) 1))).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
    }

    private static void produce(String bootstrap) throws Exception {
        // Idempotence and acks=all are the client's defaults. Batches travel as they are: compression makes the bill smaller.
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "compression.type", "zstd", "linger.ms", 20);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < ORDERS; number++) {
                String value = "{\"amount\": " + 10 * number + "}";
                producer.send(new ProducerRecord<>(TOPIC, "order-" + number, value), (done, error) -> {
                    // Called once for each record: it is durable in the object store, or `error` says why not.
                    System.out.println(error != null ? "lost: " + error : "produced " + TOPIC + "[" + done.partition() + "]@" + done.offset());
                });
            }
        }
    }

    private static void consume(String bootstrap) {
        // group.protocol=classic, the default: the newer protocol (KIP-848) is not served yet.
        Map<String, Object> settings =
                Map.of("bootstrap.servers", bootstrap, "group.id", GROUP, "auto.offset.reset", "earliest", "enable.auto.commit", false);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(TOPIC));
            Instant giveUp = Instant.now().plus(PATIENCE);
            for (int seen = 0; seen < ORDERS; ) {
                if (Instant.now().isAfter(giveUp)) {
                    throw new IllegalStateException(seen + " of " + ORDERS + " records arrived within " + PATIENCE.toSeconds() + " s");
                }
                for (ConsumerRecord<String, String> order : consumer.poll(Duration.ofSeconds(1))) {
                    seen++;
                    System.out.println("consumed " + TOPIC + "[" + order.partition() + "]@" + order.offset() + " " + order.key() + " " + order.value());
                }
                // After the work is done: a consumer that dies before this line reads the records again.
                consumer.commitSync();
            }
        }
    }

    private OrdersGroup() {}
}
