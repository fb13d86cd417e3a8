import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** The steps that write, read and look up records. */
final class Records {
    private static final int COUNT = 60;
    private static final int PARTITIONS = 3;
    private static final int OF_A_CODEC = 10;
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    private final Play play;

    Records(Play play) {
        this.play = play;
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("produce", this::produce);
        steps.put("codecs", this::codecs);
        steps.put("consume", this::consume);
        steps.put("seek", this::seek);
        steps.put("offsets", this::offsets);
        steps.put("offsets_by_time", this::offsetsByTime);
        return steps;
    }

    private TopicPartition partition(int number) {
        return new TopicPartition(play.name("records"), number);
    }

    private Object produce() throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = play.producer(Map.of("compression.type", "none"))) {
            for (int i = 0; i < COUNT; i++) {
                String value = i % 10 == 9 ? null : "value-" + i;
                ProducerRecord<String, String> record =
                        new ProducerRecord<>(play.name("records"), i % PARTITIONS, 1_600_000_000_000L + 1_000L * i, "key-" + i, value);
                record.headers().add("index", String.valueOf(i).getBytes(StandardCharsets.UTF_8)).add("empty", new byte[0]);
                sent.add(producer.send(record));
            }
            Map<String, Long> ends = new TreeMap<>();
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata acknowledged = future.get();
                ends.merge(String.valueOf(acknowledged.partition()), acknowledged.offset() + 1, Math::max);
            }
            return ends;
        }
    }

    private Object codecs() throws Exception {
        TopicPartition partition = play.create("codecs");
        for (String codec : CODECS) {
            try (KafkaProducer<String, String> producer = play.producer(Map.of("compression.type", codec, "linger.ms", "20"))) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int j = 0; j < OF_A_CODEC; j++) {
                    sent.add(producer.send(new ProducerRecord<>(partition.topic(), codecValue(codec, j))));
                }
                for (Future<RecordMetadata> future : sent) {
                    future.get();
                }
            }
        }
        List<String> values;
        try (KafkaConsumer<String, String> reader = play.reader(List.of(partition))) {
            values = read(reader, OF_A_CODEC * CODECS.size()).stream().map(ConsumerRecord::value).toList();
        }
        Map<String, Object> found = new LinkedHashMap<>();
        for (String codec : CODECS) {
            found.put(codec, (int) IntStream.range(0, OF_A_CODEC).filter(j -> values.contains(codecValue(codec, j))).count());
        }
        return found;
    }

    private static String codecValue(String codec, int j) {
        return codec + "-" + j + "-" + "x".repeat(100);
    }

    private Object consume() throws Exception {
        List<ConsumerRecord<String, String>> records;
        try (KafkaConsumer<String, String> reader = play.reader(IntStream.range(0, PARTITIONS).mapToObj(this::partition).toList())) {
            records = read(reader, COUNT);
        }
        byte[][] lines = records.stream().map(record -> (line(record) + "\n").getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
        Arrays.sort(lines, Arrays::compareUnsigned);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (byte[] line : lines) {
            digest.update(line);
        }
        return Map.of("records", records.size(), "digest", HexFormat.of().formatHex(digest.digest()));
    }

    private static String line(ConsumerRecord<String, String> record) {
        String headers =
                StreamSupport.stream(record.headers().spliterator(), false)
                        .map(header -> header.key() + "=" + new String(header.value(), StandardCharsets.UTF_8))
                        .collect(Collectors.joining(","));
        return String.join(
                " ",
                String.valueOf(record.partition()),
                String.valueOf(record.offset()),
                String.valueOf(record.timestamp()),
                record.key(),
                String.valueOf(record.value()),
                headers);
    }

    private Object seek() {
        try (KafkaConsumer<String, String> consumer = play.consumer(Map.of("max.poll.records", "1"))) {
            consumer.assign(List.of(partition(1)));
            consumer.seek(partition(1), 7);
            ConsumerRecord<String, String> first = read(consumer, 1).get(0);
            return Map.of("offset", first.offset(), "key", first.key());
        }
    }

    private Object offsets() throws Exception {
        return Map.of("earliest", offset(OffsetSpec.earliest()), "latest", offset(OffsetSpec.latest()));
    }

    private long offset(OffsetSpec which) throws Exception {
        return play.admin.listOffsets(Map.of(partition(0), which)).partitionResult(partition(0)).get().offset();
    }

    private Object offsetsByTime() {
        try (KafkaConsumer<String, String> consumer = play.consumer(Map.of())) {
            Map<String, Object> seen = new LinkedHashMap<>();
            seen.put("found", byTime(consumer, 1_600_000_006_001L));
            seen.put("none", byTime(consumer, 1_700_000_000_000L));
            return seen;
        }
    }

    private Long byTime(KafkaConsumer<String, String> consumer, long timestampMs) {
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition(0), timestampMs)).get(partition(0));
        return found == null ? null : found.offset();
    }

    /** So many records, or as many as came before the deadline. */
    static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long deadlineMs = Play.deadlineMs();
        while (records.size() < count && Play.isBefore(deadlineMs)) {
            consumer.poll(Play.POLL).forEach(records::add);
        }
        return records;
    }
}
