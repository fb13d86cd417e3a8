import java.util.List;
import java.util.Map;

/** What a web interface of Kafka asks a cluster, and what its buttons do: one line for each call, in a fixed order. */
public final class UiCalls {
    public static void main(String[] arguments) {
        try (Play play = new Play(arguments[0], arguments[1])) {
            try (UiCluster cluster = new UiCluster(play)) {
                for (Map<String, Step> steps : List.of(cluster.steps(), new UiTopics(play).steps(), new UiGroups(play).steps())) {
                    steps.forEach(play::step);
                }
            }
            new UiActions(play).steps().forEach(play::step);
        }
        System.exit(0);
    }
}
