import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;

/** The pages of consumer groups. */
final class UiGroups {
    private final Play play;

    UiGroups(Play play) {
        this.play = play;
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("list_groups", () -> list(new ListGroupsOptions()));
        steps.put("list_stable_groups", () -> list(new ListGroupsOptions().inGroupStates(java.util.Set.of(GroupState.STABLE))));
        steps.put("list_empty_groups", () -> list(new ListGroupsOptions().inGroupStates(java.util.Set.of(GroupState.EMPTY))));
        steps.put("list_consumer_groups", this::listConsumerGroups);
        steps.put("describe_groups", this::describe);
        steps.put("describe_missing_group", this::describeMissing);
        steps.put("list_group_offsets", this::offsets);
        steps.put(
                "list_offsets_of_missing_group",
                () -> play.admin.listConsumerGroupOffsets(play.name("nobody")).partitionsToOffsetAndMetadata().get().size());
        return steps;
    }

    private Object list(ListGroupsOptions options) throws Exception {
        return play.admin.listGroups(options).all().get().stream()
                .filter(group -> group.groupId().equals(play.name("readers")))
                .map(UiGroups::shown)
                .toList();
    }

    private static List<String> shown(GroupListing group) {
        return List.of(group.type().map(Enum::name).orElse("none"), group.protocol(), group.groupState().map(Enum::name).orElse("none"));
    }

    private Object listConsumerGroups() throws Exception {
        return play.admin.listConsumerGroups().all().get().stream().anyMatch(group -> group.groupId().equals(play.name("readers")));
    }

    private Object describe() throws Exception {
        ConsumerGroupDescription group =
                play.admin
                        .describeConsumerGroups(
                                List.of(play.name("readers")), new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true))
                        .all()
                        .get()
                        .get(play.name("readers"));
        MemberDescription member = group.members().iterator().next();
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("state", group.groupState().name());
        seen.put("type", group.type().name());
        seen.put("assignor", group.partitionAssignor());
        seen.put("coordinator", group.coordinator() != null && !group.coordinator().isEmpty());
        seen.put("members", group.members().size());
        seen.put("client_id", member.clientId());
        seen.put("host", member.host());
        seen.put("assignment", member.assignment().topicPartitions().size());
        seen.put("operations", new TreeSet<>(group.authorizedOperations().stream().map(Enum::name).toList()));
        return seen;
    }

    private Object describeMissing() throws Exception {
        try {
            return play.admin.describeConsumerGroups(List.of(play.name("nobody"))).all().get().get(play.name("nobody")).groupState().name();
        } catch (ExecutionException error) {
            return Map.of("error", Errors.forException(error.getCause()).name());
        }
    }

    private Object offsets() throws Exception {
        var found =
                play.admin
                        .listConsumerGroupOffsets(Map.of(play.name("readers"), new ListConsumerGroupOffsetsSpec()))
                        .partitionsToOffsetAndMetadata(play.name("readers"))
                        .get();
        Map<String, Object> offsets = new TreeMap<>();
        for (TopicPartition partition : found.keySet()) {
            offsets.put(String.valueOf(partition.partition()), found.get(partition).offset());
        }
        return offsets;
    }
}
