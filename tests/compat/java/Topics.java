import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigResource;

/** The steps that make, grow and configure topics. */
final class Topics {
    private final Play play;

    Topics(Play play) {
        this.play = play;
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("cluster", this::cluster);
        steps.put("create_topic", this::createTopic);
        steps.put("create_existing_topic", () -> Play.error(() -> create(play.name("records"), Map.of())));
        steps.put("create_invalid_topic", () -> Play.error(() -> create(play.prefix + " bad!", Map.of())));
        steps.put("create_invalid_config", () -> Play.error(() -> create(play.name("odd"), Map.of("cleanup.policy", "sometimes"))));
        steps.put("create_partitions", this::createPartitions);
        steps.put("create_fewer_partitions", () -> Play.error(() -> grow(2)));
        steps.put("describe_configs", this::describeConfigs);
        steps.put("alter_configs", this::alterConfigs);
        steps.put("describe_broker_configs", this::describeBrokerConfigs);
        return steps;
    }

    private Object cluster() throws Exception {
        DescribeClusterResult cluster = play.admin.describeCluster();
        int controller = cluster.controller().get().id();
        boolean known = cluster.nodes().get().stream().anyMatch(node -> node.id() == controller);
        return Map.of("brokers", cluster.nodes().get().size(), "controller", known);
    }

    private Object createTopic() throws Exception {
        create(play.name("records"), Map.of("retention.ms", "86400000", "max.message.bytes", "200000"));
        return Map.of("partitions", play.partitions(play.name("records"), 3));
    }

    private Object create(String topic, Map<String, String> configs) throws Exception {
        return play.admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1).configs(configs))).all().get();
    }

    private Object createPartitions() throws Exception {
        play.create("grown");
        grow(4);
        return Map.of("partitions", play.partitions(play.name("grown"), 4));
    }

    private Object grow(int partitions) throws Exception {
        return play.admin.createPartitions(Map.of(play.name("grown"), NewPartitions.increaseTo(partitions))).all().get();
    }

    private Object describeConfigs() throws Exception {
        Config config = describe(new ConfigResource(ConfigResource.Type.TOPIC, play.name("records")));
        return Map.of("retention.ms", value(config, "retention.ms"), "max.message.bytes", value(config, "max.message.bytes"));
    }

    private Object alterConfigs() throws Exception {
        ConfigResource grown = new ConfigResource(ConfigResource.Type.TOPIC, play.name("grown"));
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
        play.admin.incrementalAlterConfigs(Map.of(grown, List.of(set))).all().get();
        return Map.of("retention.ms", Play.until(() -> value(describe(grown), "retention.ms"), "3600000"::equals));
    }

    private Object describeBrokerConfigs() throws Exception {
        String broker = play.admin.describeCluster().nodes().get().iterator().next().idString();
        return Map.of("described", !describe(new ConfigResource(ConfigResource.Type.BROKER, broker)).entries().isEmpty());
    }

    private Config describe(ConfigResource resource) throws Exception {
        return play.admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    private static String value(Config config, String name) {
        return config.get(name).value();
    }
}
