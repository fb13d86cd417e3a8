import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;

/** What its buttons do. The member of the group has left before. */
final class UiActions {
    private final Play play;
    private final TopicPartition first;
    private final TopicPartition second;

    UiActions(Play play) {
        this.play = play;
        this.first = new TopicPartition(play.name("seen"), 0);
        this.second = new TopicPartition(play.name("seen"), 1);
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("elect_leaders", this::electLeaders);
        steps.put("reassign_to_itself", () -> reassign(Optional.of(new NewPartitionReassignment(List.of(broker())))));
        steps.put("cancel_reassignment", () -> reassign(Optional.empty()));
        steps.put("set_config", () -> alter("retention.ms", "1000000", AlterConfigOp.OpType.SET));
        steps.put("reset_config", () -> alter("retention.ms", null, AlterConfigOp.OpType.DELETE));
        steps.put("append_config", () -> alter("cleanup.policy", "compact", AlterConfigOp.OpType.APPEND));
        steps.put("set_invalid_config", () -> Play.error(() -> alter("retention.ms", "soon", AlterConfigOp.OpType.SET)));
        steps.put("create_partitions", this::createPartitions);
        steps.put("delete_records", this::deleteRecords);
        steps.put("alter_group_offsets", this::alterGroupOffsets);
        steps.put("delete_group_offsets", this::deleteGroupOffsets);
        steps.put("remove_members", this::removeMembers);
        steps.put("delete_groups", this::deleteGroups);
        steps.put("validate_topic", this::validateTopic);
        steps.put("create_topic", this::createTopic);
        steps.put("delete_topic_by_id", this::deleteTopicById);
        steps.put("delete_topic_by_unknown_id", () -> Play.error(() -> delete(Uuid.randomUuid())));
        return steps;
    }

    private int broker() throws Exception {
        return play.admin.describeCluster().nodes().get().iterator().next().id();
    }

    private Object electLeaders() throws Exception {
        Optional<Throwable> outcome = play.admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions().get().get(first);
        return outcome.map(error -> Errors.forException(error).name()).orElse("elected");
    }

    private Object reassign(Optional<NewPartitionReassignment> target) throws Exception {
        try {
            play.admin.alterPartitionReassignments(Map.of(first, target)).all().get();
            return "done";
        } catch (ExecutionException error) {
            return Errors.forException(error.getCause()).name();
        }
    }

    private Object alter(String name, String value, AlterConfigOp.OpType how) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, first.topic());
        play.admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), how)))).all().get();
        // A broker of Apache Kafka hears of it a little later.
        ConfigEntry now =
                Play.until(
                        () -> play.admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name),
                        seen -> how == AlterConfigOp.OpType.DELETE ? seen.isDefault() : seen.value().contains(value));
        return List.of(now.value(), now.source().name());
    }

    private Object createPartitions() throws Exception {
        play.admin.createPartitions(Map.of(first.topic(), NewPartitions.increaseTo(3))).all().get();
        return play.partitions(first.topic(), 3);
    }

    private Object deleteRecords() throws Exception {
        return play.admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(first).get().lowWatermark();
    }

    private Object alterGroupOffsets() throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(first, new OffsetAndMetadata(5, Optional.of(0), "moved"), second, new OffsetAndMetadata(0));
        play.admin.alterConsumerGroupOffsets(play.name("readers"), offsets).all().get();
        OffsetAndMetadata moved = offsets().get(first);
        return List.of(moved.offset(), moved.metadata());
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets() throws Exception {
        return play.admin.listConsumerGroupOffsets(play.name("readers")).partitionsToOffsetAndMetadata().get();
    }

    private Object deleteGroupOffsets() throws Exception {
        play.admin.deleteConsumerGroupOffsets(play.name("readers"), Set.of(second)).all().get();
        Map<String, Object> left = new TreeMap<>();
        offsets().forEach((partition, offset) -> left.put(String.valueOf(partition.partition()), offset.offset()));
        return left;
    }

    private Object removeMembers() throws Exception {
        Map<String, String> settings = Map.of("group.id", play.name("removed"), "session.timeout.ms", "30000");
        try (KafkaConsumer<String, String> member = play.consumer(settings)) {
            member.subscribe(List.of(first.topic()));
            long deadlineMs = Play.deadlineMs();
            while (member.assignment().isEmpty() && Play.isBefore(deadlineMs)) {
                member.poll(Play.POLL);
            }
            play.admin.removeMembersFromConsumerGroup(play.name("removed"), new RemoveMembersFromConsumerGroupOptions()).all().get();
            return play.admin.describeConsumerGroups(List.of(play.name("removed"))).all().get().get(play.name("removed")).members().size();
        }
    }

    private Object deleteGroups() throws Exception {
        play.admin.deleteConsumerGroups(List.of(play.name("readers"), play.name("removed"))).all().get();
        return play.admin.listGroups().all().get().stream().filter(group -> group.groupId().startsWith(play.prefix)).count();
    }

    private Object validateTopic() throws Exception {
        CreateTopicsResult checked = create(play.name("checked"), new CreateTopicsOptions().validateOnly(true));
        return Map.of(
                "partitions", checked.numPartitions(play.name("checked")).get(),
                "exists", play.admin.listTopics().names().get().contains(play.name("checked")));
    }

    private Object createTopic() throws Exception {
        CreateTopicsResult created = create(play.name("made"), new CreateTopicsOptions());
        ConfigEntry retention = created.config(play.name("made")).get().get("retention.ms");
        return Map.of(
                "partitions", created.numPartitions(play.name("made")).get(),
                "replicas", created.replicationFactor(play.name("made")).get(),
                "has_id", !created.topicId(play.name("made")).get().equals(Uuid.ZERO_UUID),
                "retention.ms", List.of(retention.value(), retention.source().name()));
    }

    private CreateTopicsResult create(String name, CreateTopicsOptions options) throws Exception {
        NewTopic topic = new NewTopic(name, Optional.empty(), Optional.empty()).configs(Map.of("retention.ms", "5000"));
        CreateTopicsResult result = play.admin.createTopics(List.of(topic), options);
        result.all().get();
        return result;
    }

    private Object deleteTopicById() throws Exception {
        play.partitions(play.name("made"), 1);
        Uuid id = play.admin.describeTopics(List.of(play.name("made"))).allTopicNames().get().get(play.name("made")).topicId();
        delete(id);
        return Play.until(() -> play.admin.listTopics().names().get().contains(play.name("made")), listed -> !listed);
    }

    private Object delete(Uuid id) throws Exception {
        return play.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
    }
}
