"""`forebay bench` beside a broker that serves: loads that are small enough to be quick."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import ANSWER_WITHIN_S, answered, following, forebay, interrupted, soon
from tests.kit.serving import Served, serving

NAMES = ["load", "bootstrap", "topic", "settings", "seconds", "records", "bytes", "records_per_s", "mb_per_s", "latency_ms", "cpu_s"]
BATCH_HEADER_BYTES = 61
LARGE = (
    "A record of 2,000 bytes is larger than the topic takes: give a smaller --record-bytes, or create the topic with a larger "
    "-c max.message.bytes."
)
SMALL = ("--records", "300", "--record-bytes", "100", "--partitions", "3")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(None) as broker:
        yield broker


def result(served: Served, load: str, *arguments: str) -> Any:
    """The one JSON object on stdout, with what all results have in common."""
    code, data, talk = forebay(served.bootstrap, "bench", load, *arguments, "--json", "-q")
    assert (code, talk) == (0, "")
    found = json.loads(data)
    assert list(found) == NAMES
    assert (found["load"], found["bootstrap"]) == (load, served.bootstrap)
    assert found["bytes"] == found["records"] * 100
    assert found["records_per_s"] == pytest.approx(found["records"] / found["seconds"], rel=0.01)
    assert found["mb_per_s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e6, rel=0.01, abs=0.001)
    assert found["cpu_s"] >= 0
    return found


def assert_rising(latency_ms: dict[str, float]) -> None:
    assert list(latency_ms) == ["p50", "p95", "p99", "max"]
    assert 0 < latency_ms["p50"] <= latency_ms["p95"] <= latency_ms["p99"] <= latency_ms["max"]


def topics(served: Served) -> list[str]:
    return [topic["name"] for topic in answered(served.bootstrap, "topic", "list")]


def ends(served: Served, topic: str) -> list[int]:
    return [partition["end"] for partition in answered(served.bootstrap, "topic", "describe", topic)["partitions"]]


def test_what_is_produced_is_stored_and_counted(served: Served) -> None:
    found = result(served, "produce", *SMALL, "--producers", "2", "--compression", "zstd", "--topic", "produced")

    assert (found["topic"], found["records"]) == ("produced", 300)
    assert found["settings"] == {
        "records": 300,
        "record_bytes": 100,
        "partitions": 3,
        "producers": 2,
        "compression": "zstd",
        "acks": "all",
        "rate": None,
        "warm_up": 30,
        "linger_ms": 5,
        "batch_bytes": 1_000_000,
    }
    assert_rising(found["latency_ms"])
    assert sum(ends(served, "produced")) == 330
    assert min(ends(served, "produced")) > 0


@pytest.mark.parametrize("acks", ["1", "0"])
def test_fewer_acknowledgements_are_counted_all_the_same(served: Served, acks: str) -> None:
    found = result(served, "produce", *SMALL, "--acks", acks, "--warm-up", "0")

    assert (found["records"], found["settings"]["acks"], found["settings"]["warm_up"]) == (300, acks, 0)


def test_producing_keeps_to_its_rate(served: Served) -> None:
    found = result(served, "produce", "--records", "100", "--record-bytes", "100", "--rate", "200", "--acks", "1")

    assert found["seconds"] >= 99 / 200
    assert found["settings"]["rate"] == 200


def test_what_was_written_before_is_read_to_the_last_record(served: Served) -> None:
    found = result(served, "consume", *SMALL, "--consumers", "2")

    assert (found["records"], found["latency_ms"]) == (300, None)
    assert found["settings"] == {
        "records": 300,
        "record_bytes": 100,
        "partitions": 3,
        "consumers": 2,
        "compression": "none",
        "warm_up": 30,
    }


def test_a_topic_that_is_there_is_read_behind_its_first_tenth_and_stays(served: Served) -> None:
    result(served, "produce", *SMALL, "--topic", "read", "--warm-up", "0")

    found = result(served, "consume", "--topic", "read")
    some = result(served, "consume", "--topic", "read", "--records", "50", "--warm-up", "0")

    assert (found["records"], found["settings"]["warm_up"], found["settings"]["record_bytes"]) == (270, 30, None)
    assert (some["records"], some["settings"]["partitions"]) == (50, 3)
    assert "read" in topics(served)


def test_each_record_comes_from_end_to_end_once(served: Served) -> None:
    found = result(served, "e2e", "--seconds", "0.2", "--topic", "passed")
    again = result(served, "e2e", "--seconds", "0.1", "--rate", "100", "--topic", "passed", "--warm-up", "0")

    assert (found["records"], again["records"]) == (40, 10)
    assert found["settings"] == {"rate": 200, "record_bytes": 100, "seconds": 0.2, "warm_up": 4, "partitions": 1, "linger_ms": 0}
    assert_rising(found["latency_ms"])
    assert found["seconds"] >= 39 / 200
    assert ends(served, "passed") == [1 + 44 + 1 + 10], "a producer introduces itself by a record"


def test_each_request_has_one_record(served: Served) -> None:
    found = result(served, "requests", "--records", "60", "--topic", "requests", "--warm-up", "6")

    assert (found["records"], found["settings"]["partitions"], found["settings"]["in_flight"]) == (60, 12, 5)
    assert_rising(found["latency_ms"])
    assert set(ends(served, "requests")) == {5, 6}
    described = answered(served.bootstrap, "topic", "describe", "requests")["partitions"]
    assert all(partition["size_bytes"] >= partition["end"] * (BATCH_HEADER_BYTES + 100) for partition in described)


@pytest.mark.parametrize(
    "load",
    [("produce", *SMALL), ("consume", *SMALL)],
    ids=lambda load: load[0],
)
def test_a_topic_of_a_load_alone_is_gone_afterwards_and_people_read_a_table(served: Served, load: tuple[str, ...]) -> None:
    before = topics(served)

    code, data, talk = forebay(served.bootstrap, "bench", *load)

    assert (code, talk) == (0, "")
    assert [line.split()[0] for line in data.splitlines()] == ["load", "topic", "records", "rate", "latency", "client"]
    assert topics(served) == before


@pytest.mark.parametrize(
    "load",
    [
        ("produce", "--records", "50000000"),
        ("consume", "--records", "50000000"),
        ("e2e", "--seconds", "1000", "--warm-up", "0"),
        ("requests", "--records", "50000000"),
    ],
    ids=lambda load: " ".join(load[:2]),
)
def test_ctrl_c_leaves_no_topic_behind(served: Served, load: tuple[str, ...]) -> None:
    before = set(topics(served))
    process = following(served.bootstrap, "bench", *load)
    soon(lambda: any(sum(ends(served, name)) for name in set(topics(served)) - before))

    assert interrupted(process) == (130, "")
    assert set(topics(served)) == before


def test_ctrl_c_leaves_a_topic_that_has_a_name(served: Served) -> None:
    process = following(served.bootstrap, "bench", "produce", "--rate", "10", "--topic", "kept")
    soon(lambda: "kept" in topics(served) and sum(ends(served, "kept")) > 0)

    assert interrupted(process) == (130, 'Created topic "kept" with 12 partitions. It stays.\n')
    assert "kept" in topics(served)


def test_a_topic_is_created_as_it_was_asked_for(served: Served) -> None:
    code, _, talk = forebay(
        served.bootstrap, "bench", "produce", "--records", "5", "--topic", "asked", "-p", "2", "-c", "retention.ms=60000"
    )

    described = answered(served.bootstrap, "topic", "describe", "asked")
    assert (code, talk) == (0, 'Created topic "asked" with 2 partitions. It stays.\n')
    assert len(described["partitions"]) == 2
    assert described["configs"]["retention.ms"]["value"] == "60000"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("produce", "-p", "3"), 2, 'Topic "there" has 2 partitions, not 3: leave --partitions out, or name another topic.'),
        (
            ("produce", "-c", "retention.ms=1"),
            2,
            'Topic "there" exists, and -c and -r are for a topic that is created. Change it: forebay topic alter there',
        ),
        (
            ("produce", "--record-bytes", "2000"),
            2,
            LARGE,
        ),
        (("consume",), 4, 'Topic "there" has no records to read. Write some: forebay bench produce --topic there'),
        (("consume", "--consumers", "3"), 2, "3 consumers are too many: each reads partitions of its own, and there are 2."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_the_topic_is_said_in_one_line(served: Served, arguments: tuple[str, ...], code: int, said: str) -> None:
    if "there" not in topics(served):
        answered(served.bootstrap, "topic", "create", "there", "-p", "2", "-c", "max.message.bytes=1000")

    assert forebay(served.bootstrap, "bench", *arguments, "--topic", "there") == (code, "", f"{said}\n")


def test_a_warm_up_that_reads_all_there_is_leaves_nothing_to_measure(served: Served) -> None:
    forebay(served.bootstrap, "bench", "produce", "--records", "10", "--warm-up", "0", "--topic", "ten")

    code, data, talk = forebay(served.bootstrap, "bench", "consume", "--topic", "ten", "--warm-up", "10")

    assert (code, data) == (2, "")
    assert talk == 'Topic "ten" has 10 records. A --warm-up of 10 leaves none to measure: give a smaller one.\n'


def test_a_topic_to_read_is_not_made_by_asking_for_it(served: Served) -> None:
    code, data, talk = forebay(served.bootstrap, "bench", "consume", "--topic", "nowhere")

    assert (code, data) == (4, "")
    assert talk.startswith('Topic "nowhere" does not exist. ')
    assert "nowhere" not in topics(served)


def test_a_topic_that_could_not_be_created_is_all_that_is_said(served: Served) -> None:
    code, data, talk = forebay(served.bootstrap, "bench", "requests", "-c", "retention=1d")

    assert (code, data) == (2, "")
    assert talk.startswith('Topic "forebay-bench-')
    assert talk.endswith(" was not created: retention is not a topic config. Did you mean retention.ms?\n")


def test_a_broker_that_dies_ends_a_load_with_the_cause_and_the_topic_that_is_left(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        process = following(broker.bootstrap, "bench", "produce", "--rate", "100", "--acks", "1", "--timeout", "1s")
        soon(lambda: any(sum(ends(broker, name)) for name in topics(broker)))
        (name,) = topics(broker)
        broker.kill9()
        data, talk = process.communicate(timeout=ANSWER_WITHIN_S)

    cause = f"Cannot reach {broker.bootstrap} (connection refused). Set -b HOST:PORT or FOREBAY_BOOTSTRAP."
    assert (process.returncode, data) == (3, b"")
    assert talk.decode().splitlines() == [f'Topic "{name}" is left: {cause} Delete it later: forebay topic delete {name}', cause]
