import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.DescribeProducersResult.PartitionProducerState;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;

/** The pages of topics: lists, partitions, offsets, producers, reassignments. */
final class UiTopics {
    private final Play play;
    private final TopicPartition first;

    UiTopics(Play play) {
        this.play = play;
        this.first = new TopicPartition(play.name("seen"), 0);
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("list_topics", this::listTopics);
        steps.put("describe_topics", () -> shown(describe(TopicCollection.ofTopicNames(List.of(first.topic())))));
        steps.put("describe_topics_by_id", () -> shown(describe(TopicCollection.ofTopicIds(List.of(id())))));
        steps.put(
                "describe_topics_by_unknown_id",
                () -> Play.error(() -> describe(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid())))));
        steps.put("offset_earliest", () -> offset(OffsetSpec.earliest()));
        steps.put("offset_latest", () -> offset(OffsetSpec.latest()));
        steps.put("offset_max_timestamp", () -> offset(OffsetSpec.maxTimestamp()));
        steps.put("offset_for_timestamp", () -> offset(OffsetSpec.forTimestamp(UiCluster.FIRST_TIMESTAMP_MS + 3_500)));
        steps.put("offset_earliest_local", () -> offset(OffsetSpec.earliestLocal()));
        steps.put("offset_latest_tiered", () -> offset(OffsetSpec.latestTiered()));
        steps.put("describe_producers", this::describeProducers);
        steps.put("list_partition_reassignments", () -> play.admin.listPartitionReassignments().reassignments().get().size());
        steps.put("list_transactions", () -> Play.error(() -> play.admin.listTransactions().all().get().size()));
        return steps;
    }

    private Object listTopics() throws Exception {
        Map<String, TopicListing> listed = play.admin.listTopics(new ListTopicsOptions().listInternal(true)).namesToListings().get();
        TopicListing seen = listed.get(first.topic());
        return Map.of("listed", seen != null, "internal", seen.isInternal(), "has_id", !seen.topicId().equals(Uuid.ZERO_UUID));
    }

    private Uuid id() throws Exception {
        return describe(TopicCollection.ofTopicNames(List.of(first.topic()))).topicId();
    }

    private TopicDescription describe(TopicCollection topics) throws Exception {
        var result = play.admin.describeTopics(topics, new DescribeTopicsOptions().includeAuthorizedOperations(true));
        boolean byId = topics instanceof TopicCollection.TopicIdCollection;
        return (byId ? result.allTopicIds() : result.allTopicNames()).get().values().iterator().next();
    }

    private static Object shown(TopicDescription topic) {
        TopicPartitionInfo partition = topic.partitions().get(0);
        return Map.of(
                "partitions", topic.partitions().size(),
                "replicas", partition.replicas().size(),
                "in_sync", partition.isr().size(),
                "led", partition.leader() != null && !partition.leader().isEmpty(),
                // Metadata, which is asked when ids are given, has no eligible leader replicas.
                "eligible", partition.elr() == null ? 0 : partition.elr().size(),
                "internal", topic.isInternal(),
                "operations", new TreeSet<>(topic.authorizedOperations().stream().map(Enum::name).toList()));
    }

    private Object offset(OffsetSpec which) throws Exception {
        ListOffsetsResultInfo found = play.admin.listOffsets(Map.of(first, which)).partitionResult(first).get();
        return List.of(found.offset(), found.timestamp());
    }

    private Object describeProducers() throws Exception {
        PartitionProducerState state = play.admin.describeProducers(List.of(first)).partitionResult(first).get();
        List<ProducerState> active = state.activeProducers();
        return Map.of(
                "active", active.size(),
                "last_sequence", active.isEmpty() ? -1 : active.get(0).lastSequence(),
                "transaction", active.stream().anyMatch(one -> one.currentTransactionStartOffset().isPresent()));
    }
}
