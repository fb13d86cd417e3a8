import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** The steps of consumer groups, and of `P-line`, whose reader one of them is. */
final class Groups {
    private final Play play;

    Groups(Play play) {
        this.play = play;
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("group_of_two", this::groupOfTwo);
        steps.put("commit_and_resume", this::commitAndResume);
        steps.put("list_groups", () -> Map.of("listed", isListed()));
        steps.put("describe_group", this::describeGroup);
        steps.put("list_group_offsets", this::listGroupOffsets);
        steps.put("delete_busy_group", this::deleteBusyGroup);
        steps.put("delete_group", this::deleteGroup);
        steps.put("delete_missing_group", () -> Play.error(() -> delete(play.name("nobody"))));
        return steps;
    }

    private Object groupOfTwo() {
        Set<String> seen = new HashSet<>();
        Map<String, Object> sizes = new LinkedHashMap<>();
        try (KafkaConsumer<String, String> a = pairMember()) {
            pollUntil(seen, List.of(a), List.of(3));
            sizes.put("alone", a.assignment().size());
            try (KafkaConsumer<String, String> b = pairMember()) {
                pollUntil(seen, List.of(a, b), List.of(1, 2));
                sizes.put("together", assigned(List.of(a, b)));
                a.commitSync();
                b.commitSync();
            }
            pollUntil(seen, List.of(a), List.of(3));
            sizes.put("again", a.assignment().size());
            long deadlineMs = Play.deadlineMs();
            while (seen.size() < 60 && Play.isBefore(deadlineMs)) {
                poll(seen, a);
            }
            a.commitSync();
        }
        sizes.put("records", seen.size());
        return sizes;
    }

    private KafkaConsumer<String, String> pairMember() {
        KafkaConsumer<String, String> member =
                play.consumer(Map.of("group.id", play.name("pair"), "heartbeat.interval.ms", "300", "session.timeout.ms", "10000"));
        member.subscribe(List.of(play.name("records")));
        return member;
    }

    private static void pollUntil(Set<String> seen, List<KafkaConsumer<String, String>> members, List<Integer> sizes) {
        long deadlineMs = Play.nowMs() + 8_000;
        while (!assigned(members).equals(sizes) && Play.isBefore(deadlineMs)) {
            members.forEach(member -> poll(seen, member));
        }
    }

    private static List<Integer> assigned(List<KafkaConsumer<String, String>> members) {
        return members.stream().map(member -> member.assignment().size()).sorted().toList();
    }

    private static void poll(Set<String> seen, KafkaConsumer<String, String> member) {
        member.poll(Play.POLL).forEach(record -> seen.add(record.partition() + "/" + record.offset()));
    }

    private Object commitAndResume() throws Exception {
        TopicPartition line = play.create("line");
        try (KafkaProducer<String, String> producer = play.producer(Map.of())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                sent.add(producer.send(new ProducerRecord<>(line.topic(), "line-" + i)));
            }
            for (Future<RecordMetadata> future : sent) {
                future.get();
            }
        }
        try (KafkaConsumer<String, String> consumer = resuming()) {
            Records.read(consumer, 10);
            consumer.commitSync(Map.of(line, new OffsetAndMetadata(10)));
        }
        Map<String, Object> saw = new LinkedHashMap<>();
        try (KafkaConsumer<String, String> consumer = resuming()) {
            ConsumerRecord<String, String> first = Records.read(consumer, 1).get(0);
            saw.put("committed", consumer.committed(Set.of(line)).get(line).offset());
            saw.put("resumed", first.value());
        }
        return saw;
    }

    private KafkaConsumer<String, String> resuming() {
        KafkaConsumer<String, String> consumer = play.consumer(Map.of("group.id", play.name("resume"), "max.poll.records", "10"));
        consumer.subscribe(List.of(play.name("line")));
        return consumer;
    }

    /** A member that has its partitions. */
    private KafkaConsumer<String, String> joined() {
        KafkaConsumer<String, String> consumer = resuming();
        pollUntil(new HashSet<>(), List.of(consumer), List.of(1));
        return consumer;
    }

    private boolean isListed() throws Exception {
        return play.admin.listConsumerGroups().all().get().stream().anyMatch(group -> group.groupId().equals(play.name("resume")));
    }

    private Object describeGroup() throws Exception {
        ConsumerGroupDescription busy;
        try (KafkaConsumer<String, String> member = joined()) {
            busy = describe();
        }
        // A description of another protocol type than this one is refused by the library.
        String type = busy.isSimpleConsumerGroup() ? "" : "consumer";
        return Map.of("member", state(busy), "empty", state(describe()), "protocol_type", type);
    }

    private ConsumerGroupDescription describe() throws Exception {
        return play.admin.describeConsumerGroups(List.of(play.name("resume"))).all().get().get(play.name("resume"));
    }

    private static String state(ConsumerGroupDescription group) {
        return group.state().toString();
    }

    private Object listGroupOffsets() throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
                play.admin.listConsumerGroupOffsets(play.name("resume")).partitionsToOffsetAndMetadata().get();
        return Map.of("offset", offsets.get(new TopicPartition(play.name("line"), 0)).offset());
    }

    private Object deleteBusyGroup() throws Exception {
        try (KafkaConsumer<String, String> member = joined()) {
            return Play.error(() -> delete(play.name("resume")));
        }
    }

    private Object deleteGroup() throws Exception {
        delete(play.name("resume"));
        return Map.of("listed", isListed());
    }

    private Object delete(String group) throws Exception {
        return play.admin.deleteConsumerGroups(List.of(group)).all().get();
    }
}
