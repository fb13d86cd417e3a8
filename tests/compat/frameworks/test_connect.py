"""Kafka Connect in distributed mode: two workers, a source and a sink of files, and a worker that is killed.

What happens against Apache Kafka is what has to happen against Forebay: the same tests run against both.
"""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.compat.frameworks.brokers import AGAINST, WARNED_OF, Against, Group, Recorded, recorded, until
from tests.compat.frameworks.jvm import complaints
from tests.compat.frameworks.workers import GROUP, TOPICS, Worker, working

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]

WITHIN_S: Final = 60.0
PARTITIONS: Final = 3
FIRST: Final = [f"line-{number}" for number in range(1_000)]
LATER: Final = [f"line-{number}" for number in range(1_000, 1_100)]
EXPECTED: Final = {
    # The first one that looks for its configuration after a rebalance, and whoever closes while a heartbeat is under way.
    "DistributedHerder": r".*Catching up to assignment's config offset\.",
    "WorkerCoordinator": r".*Close timed out with \d+ pending requests to coordinator, terminating client connections",
    "ConsumerCoordinator": r".*Close timed out with \d+ pending requests to coordinator, terminating client connections",
}
"""What workers warn of against any broker."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of one run. `workers_before` and `workers_after`: by connector, who ran its task; `again` the sink's lines read anew."""

    lines: Sequence[str]
    again: Sequence[str]
    group: Group
    sink_group: Group
    topics: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str]]
    workers_before: Mapping[str, str]
    workers_after: Mapping[str, str]
    survivor: str
    sink_offsets: int
    asked: set[str]
    complaints: Sequence[str]
    broker_complaints: Sequence[Mapping[str, object]]
    not_enforced: set[str]
    against: Against


@pytest.fixture(scope="module", params=AGAINST)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    against: Against = request.param
    folder = tmp_path_factory.mktemp(f"connect-{against}")
    with recorded(against, folder) as broker:
        with ExitStack() as closing:
            workers = [closing.enter_context(working(folder, name, broker.bootstrap)) for name in ("first", "second")]
            played = play(broker, workers, folder)
        disliked = [line for name in ("first", "second") for line in complaints(folder / f"{name}.log", EXPECTED, WARNED_OF[against])]
        yield Seen(
            **played, complaints=disliked, broker_complaints=broker.complaints(), not_enforced=broker.not_enforced(), against=against
        )


def play(broker: Recorded, workers: Sequence[Worker], folder: Path) -> dict[str, object]:
    source, sink = folder / "source.txt", folder / "sink.txt"
    source.write_text("".join(f"{line}\n" for line in FIRST))
    sink.touch()
    put(
        workers[0],
        "source",
        {
            "connector.class": "FileStreamSource",
            "file": str(source),
            "topic": "lines",
            "topic.creation.default.partitions": str(PARTITIONS),
            "topic.creation.default.replication.factor": "-1",
        },
    )
    # A sink that finds no topic warns of it.
    until(broker.topics, lambda topics: "lines" in topics, WITHIN_S)
    put(workers[1], "sink", {"connector.class": "FileStreamSink", "file": str(sink), "topics": "lines"})
    until(sink.read_text, lambda text: text.count("\n") >= len(FIRST), WITHIN_S)
    # What the source has committed it does not read again: from here on nothing is to be written twice.
    until(lambda: offsets(workers[0], "source"), lambda found: found == [{"position": source.stat().st_size}], WITHIN_S)
    before = {name: running_on(workers[0], name) for name in ("source", "sink")}
    groups = {"group": broker.group(GROUP), "sink_group": broker.group("connect-sink")}

    (dead,) = (worker for worker in workers if worker.worker_id == before["source"])
    (survivor,) = (worker for worker in workers if worker is not dead)
    dead.kill9()
    with source.open("a") as file:
        file.writelines(f"{line}\n" for line in LATER)
    until(sink.read_text, lambda text: text.count("\n") >= len(FIRST) + len(LATER), WITHIN_S)
    lines = sink.read_text().splitlines()
    after = {name: running_on(survivor, name) for name in ("source", "sink")}

    committed = until(
        lambda: sum(int(str(offset["kafka_offset"])) for offset in offsets(survivor, "sink")), lambda count: count >= len(lines), WITHIN_S
    )
    ask(survivor, "PUT", "/connectors/sink/stop")
    until(lambda: status(survivor, "sink"), lambda found: found["tasks"] == [], WITHIN_S)
    ask(survivor, "DELETE", "/connectors/sink/offsets")
    ask(survivor, "PUT", "/connectors/sink/resume")
    until(sink.read_text, lambda text: text.count("\n") >= 2 * len(lines), WITHIN_S)
    for name in ("source", "sink"):
        ask(survivor, "DELETE", f"/connectors/{name}")
    return {
        **groups,
        "asked": broker.asked(),
        "lines": lines,
        "again": sink.read_text().splitlines()[len(lines) :],
        "topics": broker.topics(),
        "configs": {topic: broker.configs(topic) for topic in TOPICS.values()},
        "workers_before": before,
        "workers_after": after,
        "survivor": survivor.worker_id,
        "sink_offsets": committed,
    }


def put(worker: Worker, connector: str, config: Mapping[str, str]) -> None:
    ask(worker, "PUT", f"/connectors/{connector}/config", {"tasks.max": "1", **config})


def ask(worker: Worker, method: str, path: str, body: Mapping[str, str] | None = None) -> object:
    """What it answers once it is not busy with a rebalance."""
    code, said = until(lambda: worker.ask(method, path, body), lambda answer: answer[0] != http.client.CONFLICT, WITHIN_S)
    assert code < http.client.BAD_REQUEST, (method, path, code, said)
    return said


def status(worker: Worker, connector: str) -> dict[str, object]:
    said = ask(worker, "GET", f"/connectors/{connector}/status")
    assert isinstance(said, dict)
    return said


def running_on(worker: Worker, connector: str) -> str:
    """Who runs the connector's only task, once it runs."""
    found = until(lambda: status(worker, connector), lambda said: [task["state"] for task in said["tasks"]] == ["RUNNING"], WITHIN_S)
    (task,) = found["tasks"]
    return str(task["worker_id"])


def offsets(worker: Worker, connector: str) -> list[dict[str, object]]:
    """Those of each of its partitions."""
    said = ask(worker, "GET", f"/connectors/{connector}/offsets")
    assert isinstance(said, dict), json.dumps(said)
    return [entry["offset"] for entry in said["offsets"]]


def test_connect_makes_its_own_topics_and_they_are_compacted(seen: Seen) -> None:
    assert {topic: seen.topics[topic] for topic in TOPICS.values()} == {"connect-configs": 1, "connect-offsets": 25, "connect-status": 5}
    assert {topic: configs["cleanup.policy"] for topic, configs in seen.configs.items()} == dict.fromkeys(TOPICS.values(), "compact")
    assert seen.topics["lines"] == PARTITIONS


def test_the_second_worker_read_the_policy_of_the_topics(seen: Seen) -> None:
    """A worker ends with an error if the policy of one of its topics is described as another one."""
    assert {"CreateTopics", "DescribeConfigs"} <= seen.asked


def test_the_group_of_the_workers_has_a_protocol_of_its_own(seen: Seen) -> None:
    assert (seen.group.state, seen.group.protocol_type, seen.group.protocol) == ("Stable", "connect", "sessioned")
    assert len(seen.group.members) == 2
    for metadata, assignment in seen.group.members:
        assert (
            seen.workers_before["source"].encode() in assignment + metadata or seen.workers_before["sink"].encode() in assignment + metadata
        )
    assert (seen.sink_group.state, seen.sink_group.protocol_type, seen.sink_group.protocol) == ("Stable", "consumer", "range")


def test_every_line_reaches_the_sink_once_though_a_worker_was_killed(seen: Seen) -> None:
    assert sorted(seen.lines) == sorted([*FIRST, *LATER])


def test_the_task_of_the_killed_worker_moves_to_the_other(seen: Seen) -> None:
    assert set(seen.workers_before.values()) > {seen.survivor}
    assert set(seen.workers_after.values()) == {seen.survivor}


def test_a_sink_whose_offsets_are_deleted_reads_everything_again(seen: Seen) -> None:
    assert seen.sink_offsets == len(FIRST) + len(LATER)
    assert sorted(seen.again) == sorted(seen.lines)
    assert "DeleteGroups" in seen.asked


def test_the_workers_have_nothing_to_complain_of(seen: Seen) -> None:
    assert seen.complaints == []


def test_the_broker_has_nothing_to_complain_of_but_configs_that_it_does_not_enforce_yet(seen: Seen) -> None:
    assert seen.broker_complaints == []
    assert seen.not_enforced == ({"cleanup.policy"} if seen.against == "forebay" else set())
