"""The command-line tools that come with Apache Kafka, typed as users type them. One JVM plays them all (tools/Tools.java)."""

import json
import re
import select
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from services.build import cache_folder
from services.jars import assembled
from services.kafka import POM
from tests.kit.serving import serving
from tests.kit.toolchains import java

pytestmark = pytest.mark.timeout(600)  # the jars are fetched once

ANSWERS_WITHIN_S: Final = 60.0
ENDS_WITHIN_S: Final = 10.0
SETTINGS: Final = {"kafka.auto_create_topics": "false", "groups.initial_rebalance_delay": "0ms"}
TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
OFFSETS: Final = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
LOG_DIRS: Final = "org.apache.kafka.tools.LogDirsCommand"
DELETE_RECORDS: Final = "org.apache.kafka.tools.DeleteRecordsCommand"
CLUSTER: Final = "org.apache.kafka.tools.ClusterTool"
API_VERSIONS: Final = "org.apache.kafka.tools.BrokerApiVersionsCommand"
ELECTION: Final = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN: Final = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TRANSACTIONS: Final = "org.apache.kafka.tools.TransactionsCommand"
QUORUM: Final = "org.apache.kafka.tools.MetadataQuorumCommand"
PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
ALL_GROUPS: Final = "org.apache.kafka.tools.GroupsCommand"
ACLS: Final = "org.apache.kafka.tools.AclCommand"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    error: str


class Tools:
    def __init__(self, process: subprocess.Popen[str], bootstrap: str) -> None:
        self.process = process
        self.bootstrap = bootstrap

    def end(self, tool: str, *typed: str, typed_in: str = "") -> Ended:
        """Type the tool's name, the broker's address and `typed`, then `typed_in` on its standard input."""
        address = ("--bootstrap-server", self.bootstrap)
        arguments = [*typed, *address] if tool == CLUSTER else [*address, *typed]
        command = {"tool": tool, "arguments": arguments, "input": typed_in}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWERS_WITHIN_S)
        assert ready, f"{tool} {' '.join(typed)} did not end within {ANSWERS_WITHIN_S:.0f} s"
        line = self.process.stdout.readline()
        assert line, f"{tool} {' '.join(typed)} ended the JVM: exit code {self.process.wait(ENDS_WITHIN_S)}"
        return Ended(**json.loads(line))

    def say(self, tool: str, *typed: str, typed_in: str = "") -> str:
        """What it says on standard output, having ended well."""
        ended = self.end(tool, *typed, typed_in=typed_in)
        assert ended.code == 0, ended
        return ended.out

    def create(self, topic: str, *, partitions: int = 3) -> None:
        assert self.say(TOPICS, "--create", "--topic", topic, "--partitions", str(partitions)) == f"Created topic {topic}.\n"

    def produce(self, topic: str, *lines: str) -> None:
        keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        self.say(PRODUCER, "--topic", topic, *keyed, typed_in="".join(f"{line}\n" for line in lines))

    def consume(self, topic: str, *, count: int, group: str) -> list[str]:
        options = ("--group", group, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000")
        return self.say(CONSUMER, "--topic", topic, *options, "--formatter-property", "print.key=true").splitlines()

    def ends(self, topic: str) -> list[str]:
        return self.say(OFFSETS, "--topic", topic).splitlines()


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    jars = assembled(POM)
    classes = java.compiled(sorted((Path(__file__).parent / "tools").glob("*.java")), jars, cache_folder() / "compat")
    with (
        serving(None, settings=SETTINGS) as served,
        subprocess.Popen(
            java.running("Tools", classes, jars), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        ) as process,
    ):
        try:
            yield Tools(process, served.bootstrap)
            process.stdin.close()
            process.wait(ENDS_WITHIN_S)
        finally:
            process.kill()


def rows(table: str) -> list[list[str]]:
    """The words of each line that says something, the heading first."""
    return [line.split() for line in table.splitlines() if line.strip()]


def test_a_topic_is_created_described_grown_and_deleted(tools: Tools) -> None:
    created = tools.say(
        TOPICS, "--create", "--topic", "life", "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=100000"
    )
    described = tools.say(TOPICS, "--describe", "--topic", "life").splitlines()
    tools.say(TOPICS, "--alter", "--topic", "life", "--partitions", "4")
    grown = tools.say(TOPICS, "--describe", "--topic", "life").splitlines()
    listed = tools.say(TOPICS, "--list").split()
    tools.say(TOPICS, "--delete", "--topic", "life")

    assert created == "Created topic life.\n"
    assert re.fullmatch(
        r"Topic: life\tTopicId: [\w-]{22}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=100000", described[0]
    )
    assert described[1:] == [
        f"\tTopic: life\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: " for number in range(2)
    ]
    assert len(grown) == 5
    assert "life" in listed
    assert "life" not in tools.say(TOPICS, "--list").split()


def test_refusals_name_what_is_wrong(tools: Tools) -> None:
    tools.create("taken")
    again = tools.end(TOPICS, "--create", "--topic", "taken")
    missing = tools.end(TOPICS, "--describe", "--topic", "nowhere")
    fewer = tools.end(TOPICS, "--alter", "--topic", "taken", "--partitions", "1")

    assert (again.code, missing.code, fewer.code) == (1, 1, 1)
    assert "TopicExistsException" in again.error
    assert "Topic 'nowhere' does not exist as expected" in missing.out
    assert "InvalidPartitionsException" in fewer.error
    assert tools.say(TOPICS, "--create", "--if-not-exists", "--topic", "taken") == ""


def test_no_partition_is_under_replicated_or_without_leader(tools: Tools) -> None:
    tools.create("healthy")

    for question in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert tools.say(TOPICS, "--describe", question).strip() == ""


def test_what_one_console_writes_another_reads(tools: Tools) -> None:
    tools.create("lines")
    tools.produce("lines", "a:1", "b:2", "c:ü 3")
    tools.say(PRODUCER, "--topic", "lines", "--compression-codec", "zstd", typed_in="plain\n")

    assert sorted(tools.consume("lines", count=4, group="lines")) == ["a\t1", "b\t2", "c\tü 3", "null\tplain"]
    assert sum(int(end.rpartition(":")[2]) for end in tools.ends("lines")) == 4


def test_one_partition_is_read_from_an_offset(tools: Tools) -> None:
    tools.create("from", partitions=1)
    tools.produce("from", "k:0", "k:1", "k:2")
    shown = tools.say(
        CONSUMER,
        "--topic", "from", "--partition", "0", "--offset", "1", "--max-messages", "2",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.partition=true",
    )  # fmt: skip

    assert shown.splitlines() == ["Partition:0\tOffset:1\t1", "Partition:0\tOffset:2\t2"]


def test_offsets_are_found_by_place_and_time(tools: Tools) -> None:
    tools.create("places", partitions=2)
    tools.produce("places", *(f"{key}:value" for key in range(10)))
    ends = dict(line.rsplit(":", 1) for line in tools.ends("places"))
    earliest = tools.say(OFFSETS, "--topic-partitions", "places:0-2", "--time", "earliest").splitlines()
    newest = dict(line.rsplit(":", 1) for line in tools.say(OFFSETS, "--topic", "places", "--time", "max-timestamp").splitlines())
    since_the_beginning = tools.say(OFFSETS, "--topic", "places", "--time", "0").splitlines()

    assert sum(map(int, ends.values())) == 10
    assert earliest == since_the_beginning == ["places:0:0", "places:1:0"]
    assert all(0 <= int(newest[place]) < int(end) for place, end in ends.items())


def test_a_group_is_listed_and_described_with_its_lag(tools: Tools) -> None:
    tools.create("lagging", partitions=1)
    tools.produce("lagging", "k:0", "k:1", "k:2")
    tools.consume("lagging", count=2, group="slow")
    described = tools.end(GROUPS, "--describe", "--group", "slow")
    states = rows(tools.say(GROUPS, "--list", "--state"))
    coordinator = rows(tools.say(GROUPS, "--describe", "--group", "slow", "--state"))

    assert rows(described.out)[1][:6] == ["slow", "lagging", "0", "2", "3", "1"]
    assert "Consumer group 'slow' has no active members." in described.error
    assert ["slow", "Empty"] in states
    assert coordinator[1] == ["slow", tools.bootstrap, "(1)", "-", "Empty", "0"]
    assert "slow" in tools.say(GROUPS, "--list").split()
    assert ["slow", "Classic", "consumer"] in rows(tools.say(ALL_GROUPS, "--list"))


def test_offsets_of_a_group_are_reset_and_deleted(tools: Tools) -> None:
    tools.create("again", partitions=1)
    tools.produce("again", *(f"k:{number}" for number in range(6)))
    tools.consume("again", count=6, group="again")
    reset = ("--reset-offsets", "--group", "again", "--topic", "again")

    assert rows(tools.say(GROUPS, *reset, "--to-earliest", "--dry-run"))[1] == ["again", "again", "0", "0"]
    assert rows(tools.say(GROUPS, *reset, "--shift-by", "-2", "--execute"))[1] == ["again", "again", "0", "4"]
    assert rows(tools.say(GROUPS, *reset, "--to-offset", "3", "--execute"))[1] == ["again", "again", "0", "3"]
    assert rows(tools.say(GROUPS, *reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute"))[1] == ["again", "again", "0", "0"]
    assert rows(tools.say(GROUPS, "--describe", "--group", "again"))[1][3] == "0"
    assert rows(tools.say(GROUPS, "--delete-offsets", "--group", "again", "--topic", "again:0"))[-1] == ["again", "0", "Successful"]


def test_a_group_is_deleted_once(tools: Tools) -> None:
    tools.create("leaving", partitions=1)
    tools.produce("leaving", "k:v")
    tools.consume("leaving", count=1, group="leaving")
    deleted = tools.say(GROUPS, "--delete", "--group", "leaving")

    assert deleted == "Deletion of requested consumer groups ('leaving') was successful.\n"
    assert "GroupIdNotFoundException" in tools.end(GROUPS, "--delete", "--group", "leaving").out
    assert "GroupIdNotFoundException" in tools.end(GROUPS, "--describe", "--group", "leaving").out


def test_configs_of_a_topic_are_set_shown_and_taken_back(tools: Tools) -> None:
    tools.create("tuned")
    topic = ("--entity-type", "topics", "--entity-name", "tuned")
    tools.say(CONFIGS, *topic, "--alter", "--add-config", "max.message.bytes=5000,cleanup.policy=[compact,delete]")
    both = tools.say(CONFIGS, *topic, "--describe")
    tools.say(CONFIGS, *topic, "--alter", "--delete-config", "max.message.bytes")
    one = tools.say(CONFIGS, "--topic", "tuned", "--describe")
    odd = tools.end(CONFIGS, *topic, "--alter", "--add-config", "nonsense=1")

    assert both.startswith("Dynamic configs for topic tuned are:\n")
    assert "  cleanup.policy=compact,delete sensitive=false" in both
    assert "  max.message.bytes=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000, DEFAULT_CONFIG:" in both
    assert "max.message.bytes" not in one
    assert "  retention.ms=604800000 sensitive=false" in tools.say(CONFIGS, *topic, "--describe", "--all")
    assert odd.code == 1
    assert "InvalidConfigurationException" in odd.error


def test_configs_of_a_broker_are_shown(tools: Tools) -> None:
    shown = tools.say(CONFIGS, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")

    assert shown.startswith("All configs for broker 1 are:\n")
    assert f"  advertised.listeners=PLAINTEXT://{tools.bootstrap} sensitive=false" in shown
    assert "  auto.create.topics.enable=false sensitive=false" in shown


def test_users_and_clients_have_no_configs(tools: Tools) -> None:
    assert tools.say(CONFIGS, "--entity-type", "users", "--describe").strip() == ""
    assert tools.say(CONFIGS, "--entity-type", "clients", "--describe").strip() == ""


def test_sizes_of_partitions_are_shown(tools: Tools) -> None:
    tools.create("sized", partitions=1)
    tools.produce("sized", "k:v")
    said = tools.say(LOG_DIRS, "--describe", "--topic-list", "sized").splitlines()
    (broker,) = json.loads(said[-1])["brokers"]
    (folder,) = broker["logDirs"]
    (partition,) = folder["partitions"]

    assert (broker["broker"], folder["error"], partition["partition"]) == (1, None, "sized-0")
    assert partition["size"] > 60


def test_records_are_deleted_up_to_an_offset(tools: Tools, tmp_path: Path) -> None:
    tools.create("shorter", partitions=2)
    tools.produce("shorter", *(f"{key}:v" for key in range(8)))
    before = {"version": 1, "partitions": [{"topic": "shorter", "partition": number, "offset": -1} for number in range(2)]}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(before))
    said = tools.say(DELETE_RECORDS, "--offset-json-file", str(file)).splitlines()
    ends = tools.ends("shorter")

    assert sorted(said[2:]) == [f"partition: shorter-{number}\tlow_watermark: {end.rpartition(':')[2]}" for number, end in enumerate(ends)]
    assert tools.say(OFFSETS, "--topic", "shorter", "--time", "earliest").splitlines() == ends


def test_the_cluster_and_its_broker_are_named(tools: Tools) -> None:
    host, _, port = tools.bootstrap.partition(":")

    assert re.fullmatch(r"Cluster ID: [\w-]{22}\n", tools.say(CLUSTER, "cluster-id"))
    assert rows(tools.say(CLUSTER, "list-endpoints"))[1] == ["1", host, port, "null", "unfenced", "broker"]


def test_the_tools_find_a_version_of_each_api_they_need(tools: Tools) -> None:
    said = tools.say(API_VERSIONS)
    usable = set(re.findall(r"(\w+)\(\d+\): .* \[usable: \d+\]", said))

    assert said.startswith(f"{tools.bootstrap} (id: 1 rack: null")
    assert {"Produce", "Fetch", "Metadata", "JoinGroup", "OffsetCommit", "CreateTopics", "DescribeConfigs", "DescribeCluster"} <= usable
    assert "UNKNOWN" not in said


def test_an_election_is_not_needed(tools: Tools) -> None:
    tools.create("led", partitions=1)

    assert tools.say(ELECTION, "--election-type", "preferred", "--all-topic-partitions").strip() == ""
    one = tools.say(ELECTION, "--election-type", "preferred", "--topic", "led", "--partition", "0")
    assert one == "Valid replica already elected for partitions led-0\n"


def test_a_reassignment_is_over_when_it_begins(tools: Tools, tmp_path: Path) -> None:
    tools.create("moved", partitions=1)
    file = tmp_path / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [1], "log_dirs": ["any"]}]}))
    started = tools.say(REASSIGN, "--execute", "--reassignment-json-file", str(file))

    assert "Successfully started partition reassignment for moved-0" in started
    assert tools.say(REASSIGN, "--list") == "No partition reassignments found.\n"
    assert "Reassignment of partition moved-0 is completed" in tools.say(REASSIGN, "--verify", "--reassignment-json-file", str(file))


def test_producers_of_a_partition_are_shown(tools: Tools) -> None:
    tools.create("producers", partitions=1)
    tools.produce("producers", "k:0", "k:1")
    heading, producer = rows(tools.say(TRANSACTIONS, "describe-producers", "--topic", "producers", "--partition", "0"))

    assert heading[:4] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence"]
    assert (producer[1], producer[3], producer[-1]) == ("0", "1", "None")
    assert len(rows(tools.say(TRANSACTIONS, "find-hanging", "--broker-id", "1"))) == 1


def test_access_control_is_said_to_be_off(tools: Tools) -> None:
    ended = tools.end(ACLS, "--list")

    assert ended.code == 1
    assert "SecurityDisabledException" in ended.out


def test_the_live_brokers_are_shown_as_the_quorum(tools: Tools) -> None:
    status = tools.say(QUORUM, "describe", "--status")
    heading, leader = rows(tools.say(QUORUM, "describe", "--replication"))

    assert re.search(r"^LeaderId: +1$", status, re.MULTILINE)
    assert re.search(r"^MaxFollowerLag: +0$", status, re.MULTILINE)
    assert (heading[0], leader[0], leader[-1]) == ("NodeId", "1", "Leader")


def test_a_transactional_producer_is_told_that_there_are_no_transactions(tools: Tools) -> None:
    tools.create("transacted", partitions=1)
    typed = ("--topic", "transacted", "--num-records", "10", "--record-size", "10", "--throughput", "-1", "--transactional-id", "t")
    ended = tools.end(PERFORMANCE, *typed)

    assert "transactions are not served" in ended.out + ended.error


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_what_a_topic_keeps_in_its_own_codec_is_consumed(tools: Tools, codec: str) -> None:
    topic = f"kept-{codec}"
    tools.say(TOPICS, "--create", "--topic", topic, "--partitions", "1", "--config", f"compression.type={codec}")
    lines = [f"k{number}:{'value ' * 50}{number}" for number in range(3_000)]
    sent = "gzip" if codec == "lz4" else "lz4"
    tools.say(
        PRODUCER, "--topic", topic, "--compression-codec", sent, "--reader-property", "parse.key=true",
        "--reader-property", "key.separator=:", typed_in="".join(f"{line}\n" for line in lines),
    )  # fmt: skip

    assert [line.replace("\t", ":") for line in tools.consume(topic, count=len(lines), group=topic)] == lines
