import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** The steps at the limits: records and topics that go, and what is refused. */
final class Ends {
    private static final int TOO_LARGE = 300_000;

    private final Play play;

    Ends(Play play) {
        this.play = play;
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("delete_records", this::deleteRecords);
        steps.put("fetch_out_of_range", this::fetchOutOfRange);
        steps.put("idempotent", this::idempotent);
        steps.put("message_too_large", this::messageTooLarge);
        steps.put("missing_topic", () -> Play.error(() -> play.admin.describeTopics(List.of(play.name("nowhere"))).allTopicNames().get()));
        steps.put("delete_topic", this::deleteTopic);
        steps.put("delete_missing_topic", () -> Play.error(() -> delete(play.name("nowhere"))));
        return steps;
    }

    private Object deleteRecords() throws Exception {
        TopicPartition line = new TopicPartition(play.name("line"), 0);
        long low = play.admin.deleteRecords(Map.of(line, RecordsToDelete.beforeOffset(5))).lowWatermarks().get(line).get().lowWatermark();
        return Map.of("low_watermark", low, "earliest", offset(line, OffsetSpec.earliest()));
    }

    private long offset(TopicPartition partition, OffsetSpec which) throws Exception {
        return play.admin.listOffsets(Map.of(partition, which)).partitionResult(partition).get().offset();
    }

    private Object fetchOutOfRange() {
        TopicPartition line = new TopicPartition(play.name("line"), 0);
        try (KafkaConsumer<String, String> consumer = play.consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(line));
            consumer.seek(line, 1000);
            long deadlineMs = Play.deadlineMs();
            while (Play.isBefore(deadlineMs)) {
                consumer.poll(Play.POLL);
            }
            return Map.of("no_error", "a deadline");
        } catch (OffsetOutOfRangeException error) {
            return Map.of("error", "OFFSET_OUT_OF_RANGE");
        }
    }

    private Object idempotent() throws Exception {
        TopicPartition once = play.create("once");
        try (KafkaProducer<String, String> producer = play.producer(Map.of("enable.idempotence", "true"))) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                sent.add(producer.send(new ProducerRecord<>(once.topic(), "once-" + i)));
            }
            for (Future<RecordMetadata> future : sent) {
                future.get();
            }
        }
        return Map.of("latest", offset(once, OffsetSpec.latest()));
    }

    private Object messageTooLarge() throws Exception {
        // Latin letters at random: one byte each, and nothing to compress.
        StringBuilder value = new StringBuilder(TOO_LARGE);
        new Random(1).ints(TOO_LARGE, 'a', 'z' + 1).forEach(value::appendCodePoint);
        try (KafkaProducer<String, String> producer = play.producer(Map.of())) {
            return Play.error(() -> producer.send(new ProducerRecord<>(play.name("records"), value.toString())).get());
        }
    }

    private Object deleteTopic() throws Exception {
        delete(play.name("grown"));
        return Map.of("listed", Play.until(() -> play.admin.listTopics().names().get().contains(play.name("grown")), listed -> !listed));
    }

    private Object delete(String topic) throws Exception {
        return play.admin.deleteTopics(List.of(topic)).all().get();
    }
}
