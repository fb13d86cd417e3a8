import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** The page of the cluster: brokers, configs, features, sizes, users, quotas, ACLs. Makes what the other pages look at. */
final class UiCluster implements AutoCloseable {
    static final int RECORDS = 10;
    static final long FIRST_TIMESTAMP_MS = 1_600_000_000_000L;

    private final Play play;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> member;

    UiCluster(Play play) {
        this.play = play;
        this.producer = play.producer(Map.of());
        this.member = play.consumer(Map.of("group.id", play.name("readers"), "client.id", "reader"));
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("prepare", this::prepare);
        steps.put("describe_cluster", this::describeCluster);
        steps.put("describe_broker_configs", this::describeBrokerConfigs);
        steps.put("describe_topic_configs", this::describeTopicConfigs);
        steps.put("list_config_resources", this::listConfigResources);
        steps.put("describe_features", this::describeFeatures);
        steps.put("describe_log_dirs", this::describeLogDirs);
        steps.put("describe_user_scram_credentials", () -> play.admin.describeUserScramCredentials().all().get().size());
        steps.put("describe_client_quotas", () -> play.admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size());
        steps.put("describe_acls", () -> Play.error(() -> play.admin.describeAcls(AclBindingFilter.ANY).values().get()));
        steps.put("describe_metadata_quorum", () -> Play.error(() -> play.admin.describeMetadataQuorum().quorumInfo().get().leaderId()));
        steps.put("describe_delegation_token", () -> Play.error(() -> play.admin.describeDelegationToken().delegationTokens().get()));
        return steps;
    }

    /** A topic of two partitions with records in the first, and a group whose one member has read them. */
    private Object prepare() throws Exception {
        NewTopic topic = new NewTopic(play.name("seen"), 2, (short) 1).configs(Map.of("retention.ms", "86400000"));
        play.admin.createTopics(List.of(topic)).all().get();
        play.partitions(play.name("seen"), 2);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < RECORDS; i++) {
            sent.add(producer.send(new ProducerRecord<>(play.name("seen"), 0, FIRST_TIMESTAMP_MS + 1_000L * i, "key", "value-" + i)));
        }
        for (Future<RecordMetadata> future : sent) {
            future.get();
        }
        member.subscribe(List.of(play.name("seen")));
        int read = Records.read(member, RECORDS).size();
        member.commitSync();
        return Map.of("read", read, "assigned", member.assignment().size());
    }

    private Object describeCluster() throws Exception {
        DescribeClusterOptions all = new DescribeClusterOptions().includeAuthorizedOperations(true).includeFencedBrokers(true);
        DescribeClusterResult seen = play.admin.describeCluster(all);
        return Map.of(
                "brokers", seen.nodes().get().size(),
                "controller_known", seen.nodes().get().contains(seen.controller().get()),
                "cluster_id", !seen.clusterId().get().isEmpty(),
                "fenced", seen.nodes().get().stream().filter(node -> node.isFenced()).count(),
                "operations", new TreeSet<>(seen.authorizedOperations().get().stream().map(Enum::name).toList()));
    }

    private Object describeBrokerConfigs() throws Exception {
        String broker = play.admin.describeCluster().nodes().get().iterator().next().idString();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.BROKER, broker);
        Config config = describe(resource);
        ConfigEntry level = config.get("inter.broker.protocol.version");
        return Map.of(
                "level", level == null ? "none" : level.value(),
                "broker.id", config.get("broker.id") == null ? "none" : String.valueOf(config.get("broker.id").value().equals(broker)),
                "has_listeners", config.get("advertised.listeners") != null,
                "undocumented", undocumented(config),
                "entries_over_20", config.entries().size() > 20);
    }

    private Object describeTopicConfigs() throws Exception {
        Config config = describe(new ConfigResource(ConfigResource.Type.TOPIC, play.name("seen")));
        ConfigEntry retention = config.get("retention.ms");
        ConfigEntry policy = config.get("cleanup.policy");
        return Map.of(
                "retention.ms", List.of(retention.value(), retention.source().name(), retention.type().name(), retention.isReadOnly()),
                "cleanup.policy", List.of(policy.value(), policy.source().name(), policy.type().name(), policy.isSensitive()),
                "synonyms", retention.synonyms().stream().map(one -> one.source().name() + " " + one.name()).toList(),
                "undocumented", undocumented(config),
                "entries_over_20", config.entries().size() > 20);
    }

    private static List<String> undocumented(Config config) {
        return config.entries().stream()
                .filter(one -> one.documentation() == null || one.documentation().isEmpty())
                .map(ConfigEntry::name)
                .sorted()
                .toList();
    }

    private Config describe(ConfigResource resource) throws Exception {
        DescribeConfigsOptions all = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return play.admin.describeConfigs(List.of(resource), all).all().get().get(resource);
    }

    private Object listConfigResources() throws Exception {
        boolean listed =
                play.admin.listConfigResources().all().get().contains(new ConfigResource(ConfigResource.Type.TOPIC, play.name("seen")));
        return Map.of("topic", listed);
    }

    private Object describeFeatures() throws Exception {
        FeatureMetadata features = play.admin.describeFeatures().featureMetadata().get();
        Map<String, Object> finalized = new TreeMap<>();
        features.finalizedFeatures().forEach((name, range) -> finalized.put(name, (int) range.maxVersionLevel()));
        return Map.of("finalized", finalized, "supported", new TreeSet<>(features.supportedFeatures().keySet()));
    }

    private Object describeLogDirs() throws Exception {
        int broker = play.admin.describeCluster().nodes().get().iterator().next().id();
        Map<String, LogDirDescription> folders = play.admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
        Map<String, Object> sizes = new TreeMap<>();
        for (LogDirDescription folder : folders.values()) {
            folder.replicaInfos().forEach((partition, replica) -> {
                if (partition.topic().equals(play.name("seen"))) {
                    sizes.put(String.valueOf(partition.partition()), replica.size() > 0);
                }
            });
        }
        long errors = folders.values().stream().filter(one -> one.error() != null).count();
        return Map.of("folders", folders.size(), "errors", errors, "filled", sizes);
    }

    @Override
    public void close() {
        producer.close(Duration.ofSeconds(5));
        member.close(org.apache.kafka.clients.consumer.CloseOptions.timeout(Duration.ofSeconds(5)));
    }
}
