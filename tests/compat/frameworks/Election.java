import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.ApiVersions;
import org.apache.kafka.clients.ClientUtils;
import org.apache.kafka.clients.GroupRebalanceConfig;
import org.apache.kafka.clients.Metadata;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.internals.AbstractCoordinator;
import org.apache.kafka.clients.consumer.internals.ConsumerNetworkClient;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.internals.ClusterResourceListeners;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocol;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocolCollection;
import org.apache.kafka.common.message.JoinGroupResponseData.JoinGroupResponseMember;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Timer;

/**
 * Members of a group that elect one of them, as the instances of a Schema Registry do: {@code Election BOOTSTRAP GROUP}.
 *
 * <p>Protocol type {@code sr}, protocol {@code v0}; metadata and assignments are JSON, and nobody is assigned a partition. Lines of standard
 * input are commands, each answered by one line of JSON on standard output: {@code status} and {@code close NUMBER}.
 */
public final class Election {
    private static final int MEMBERS = 2;
    private static final int SESSION_MS = 10_000;
    private static final int HEARTBEAT_MS = 500;
    private static final int BACKOFF_MS = 100;
    private static final int REQUEST_MS = 10_000;

    public static void main(String[] arguments) throws Exception {
        List<Member> members = new ArrayList<>();
        for (int number = 0; number < MEMBERS; number++) {
            members.add(Member.joining(arguments[0], arguments[1], "registry-" + number));
        }
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.startsWith("close ")) {
                members.get(Integer.parseInt(line.substring("close ".length()))).leave();
            }
            System.out.println(Json.of(Map.of("elected", members.stream().map(Member::elected).toList())));
        }
        for (Member member : members) {
            member.leave();
        }
    }

    /** One instance, which runs in a thread of its own from `joining` to `leave`. */
    private static final class Member {
        private final Coordinator coordinator;
        private final ConsumerNetworkClient client;
        private final AtomicBoolean over = new AtomicBoolean();
        private final Thread thread = new Thread(this::run);

        private Member(Coordinator coordinator, ConsumerNetworkClient client) {
            this.coordinator = coordinator;
            this.client = client;
        }

        static Member joining(String bootstrap, String group, String name) {
            String text = StringDeserializer.class.getName();
            ConsumerConfig config =
                    new ConsumerConfig(
                            Map.of("bootstrap.servers", bootstrap, "client.id", name, "key.deserializer", text, "value.deserializer", text));
            LogContext context = new LogContext("[" + name + "] ");
            Metadata metadata = new Metadata(BACKOFF_MS, BACKOFF_MS, REQUEST_MS, context, new ClusterResourceListeners());
            metadata.bootstrap(ClientUtils.parseAndValidateAddresses(config));
            Metrics metrics = new Metrics();
            ConsumerNetworkClient client =
                    new ConsumerNetworkClient(
                            context,
                            ClientUtils.createNetworkClient(
                                    config, metrics, "registry", context, new ApiVersions(), Time.SYSTEM, 1, metadata, null, null),
                            metadata,
                            Time.SYSTEM,
                            BACKOFF_MS,
                            REQUEST_MS,
                            HEARTBEAT_MS);
            GroupRebalanceConfig rebalances =
                    new GroupRebalanceConfig(SESSION_MS, SESSION_MS, HEARTBEAT_MS, group, Optional.empty(), null, BACKOFF_MS, BACKOFF_MS);
            Member member = new Member(new Coordinator(rebalances, context, client, metrics, name), client);
            member.thread.start();
            return member;
        }

        /** What the last election told it; empty before that, and when it has left. */
        String elected() {
            return over.get() ? "" : coordinator.elected.get();
        }

        void leave() throws InterruptedException {
            if (!over.getAndSet(true)) {
                client.wakeup();
                thread.join();
                coordinator.leave();
            }
        }

        private void run() {
            try {
                while (!over.get()) {
                    coordinator.poll();
                }
            } catch (WakeupException left) {
                // It was told to leave while it waited for an answer.
            }
        }
    }

    private static final class Coordinator extends AbstractCoordinator {
        private final AtomicReference<String> elected = new AtomicReference<>("");
        private final ConsumerNetworkClient client;
        private final String name;

        Coordinator(GroupRebalanceConfig config, LogContext context, ConsumerNetworkClient client, Metrics metrics, String name) {
            super(config, context, client, metrics, "registry", Time.SYSTEM);
            this.client = client;
            this.name = name;
        }

        void poll() {
            ensureActiveGroup();
            long now = Time.SYSTEM.milliseconds();
            pollHeartbeat(now);
            client.poll(Time.SYSTEM.timer(Math.max(1, timeToNextHeartbeat(now))));
        }

        void leave() {
            close(Time.SYSTEM.timer(REQUEST_MS), CloseOptions.GroupMembershipOperation.DEFAULT);
        }

        @Override
        protected String protocolType() {
            return "sr";
        }

        @Override
        protected JoinGroupRequestProtocolCollection metadata() {
            byte[] identity = Json.of(Map.of("host", name)).getBytes(StandardCharsets.UTF_8);
            return new JoinGroupRequestProtocolCollection(
                    List.of(new JoinGroupRequestProtocol().setName("v0").setMetadata(identity)).iterator());
        }

        @Override
        protected boolean onJoinPrepare(Timer timer, int generation, String memberId) {
            elected.set("");
            return true;
        }

        /** The smallest identity is elected, and everyone is told. */
        @Override
        protected Map<String, ByteBuffer> onLeaderElected(
                String leaderId, String protocol, List<JoinGroupResponseMember> members, boolean skipAssignment) {
            String smallest = members.stream().map(member -> text(member.metadata())).sorted().findFirst().orElseThrow();
            Map<String, ByteBuffer> told = new HashMap<>();
            members.forEach(member -> told.put(member.memberId(), StandardCharsets.UTF_8.encode(smallest)));
            return told;
        }

        @Override
        protected void onJoinComplete(int generation, String memberId, String protocol, ByteBuffer assignment) {
            elected.set(StandardCharsets.UTF_8.decode(assignment).toString());
        }

        private static String text(byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
    }
}
