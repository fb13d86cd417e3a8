"""Jobs of flights whose driver is killed again and again: what is in the table is what the log says, each row once."""

import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kit.serving import ROOT
from tests.spark.acks import Record, produce
from tests.spark.brokers import QUIET, WITHIN_S, Brokers
from tests.spark.flight_streams import HOUR_MS, Flight, at

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.slow, pytest.mark.long]

FLIGHTS: Final = 240
PER_BATCH: Final = 60
LAST: Final = 3
"""The last batch that has records; the one after it does what the watermark then allows."""
WATERMARK_MS: Final = 12 * HOUR_MS
GAP_MS: Final = 4 * HOUR_MS
ENDED_WITHIN_S: Final = 600.0
FOR_EVER: Final = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    """Half an hour apart, an hour or less out of order; now and then one without a tailnum, or a record that is none."""
    chance = random.Random(3)
    return [
        Flight(
            hours=number / 2 + chance.uniform(0, 1),
            carrier=chance.choice(["UA", "AA"]),
            tailnum=chance.choice([None, *(f"N{one}" for one in range(7))]),
            dep_delay=chance.choice([None, -3, 0, 20]),
            value=b"{" if number % 50 == 49 else None,
            partition=number % 2,
            offset=number // 2,
        )
        for number in range(FLIGHTS)
    ]


@pytest.fixture(scope="module")
def topic(brokers: Brokers, flights: Sequence[Flight]) -> str:
    name = brokers.create("flights-of-killed-drivers", partitions=2, config=FOR_EVER)
    produce(brokers.bootstrap, name, [Record(value=one.body, timestamp_ms=at(one.hours), partition=one.partition) for one in flights])
    return name


@pytest.fixture
def given(brokers: Brokers, topic: str, tmp_path: Path) -> list[str]:
    return [
        *("--bootstrap-servers", brokers.bootstrap, "--topics", topic, "--offsets-per-batch", str(PER_BATCH), "--watermark", "12h"),
        *("--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")),
    ]


def driven(folder: Path, job: str, kills: Mapping[str, int], given: Sequence[str]) -> list[dict[str, Any]]:
    """The table's rows after a driver that was killed at each of these points of a batch, and one that was not."""
    for point, batch in kills.items():
        killed = drive(folder, job, point, batch, given)
        assert killed.returncode == -signal.SIGKILL, f"it was not killed when batch {batch} was {point}: {killed.stdout}"
    ended = drive(folder, job, "never", 0, given)
    assert ended.returncode == 0, (folder / "driver.log").read_text()[-2_000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def drive(folder: Path, job: str, point: str, batch: int, given: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.spark.flight_driver", job, point, str(batch), *given]
    with (folder / "driver.log").open("a") as log:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True, timeout=ENDED_WITHIN_S, check=False
        )


def windows_of(flights: Sequence[Flight]) -> list[tuple[Any, ...]]:
    """As a table has them: carrier, start, end, flights, cancelled, mean and largest delay."""
    found: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    for one in flights:
        if one.value is None:
            found[one.carrier, at(one.hours) // HOUR_MS * HOUR_MS].append(one.dep_delay)
    rows = []
    for (carrier, start), delays in found.items():
        known = [delay for delay in delays if delay is not None]
        mean = sum(known) / len(known) if known else None
        rows.append((carrier, start, start + HOUR_MS, len(delays), delays.count(None), mean, max(known, default=None)))
    return sorted(rows)


def watermark_ms(flights: Sequence[Flight]) -> int:
    return max(at(one.hours) for one in flights) - WATERMARK_MS


def test_windows_that_are_brought_up_to_date_are_exact_after_kills_and_are_in_the_topic(
    brokers: Brokers, flights: Sequence[Flight], given: Sequence[str], tmp_path: Path
) -> None:
    hourly = brokers.create("hourly-of-killed-drivers", config=FOR_EVER)

    found = driven(tmp_path, "windows", {"planned": 1, "computed": 2, "written": LAST}, [*given, "--to-topic", hourly])

    assert sorted(tuple(row.values()) for row in found) == windows_of(flights)
    assert sum(row["flights"] for row in found) == sum(one.value is None for one in flights)
    last = {key.split()[0] + value["window_start"]: value["flights"] for key, value in messages(brokers, hourly)}
    assert sorted(last.values()) == sorted(row["flights"] for row in found)
    assert len(last) == len(found)


def test_windows_that_are_appended_are_there_once_after_kills(flights: Sequence[Flight], given: Sequence[str], tmp_path: Path) -> None:
    kills = {"planned": 1, "computed": 2, "written": LAST}

    found = driven(tmp_path, "windows", kills, [*given, "--mode", "append"])

    closed = [window for window in windows_of(flights) if window[2] <= watermark_ms(flights)]
    assert sorted(tuple(row.values()) for row in found) == closed
    assert len(closed) > FLIGHTS / 4


def test_days_of_aircraft_are_there_once_after_kills(flights: Sequence[Flight], given: Sequence[str], tmp_path: Path) -> None:
    kills = {"planned": 1, "computed": 2, "written": LAST}

    found = driven(tmp_path, "sessions", kills, [*given, "--gap", "4h"])

    assert sorted(
        (row["tailnum"], row["start"], row["end"], row["legs"], row["cancelled"], row["total_delay"]) for row in found
    ) == days_of(flights)


def days_of(flights: Sequence[Flight]) -> list[tuple[Any, ...]]:
    """Those that are closed in the end: each departure that comes longer after the one before it begins a day."""
    legs = [one for one in flights if one.value is None and one.tailnum]
    latest = max(at(one.hours) for one in legs) - WATERMARK_MS
    found = []
    for tailnum in {one.tailnum for one in legs}:
        own = sorted((one for one in legs if one.tailnum == tailnum), key=lambda one: at(one.hours))
        begins = [number for number, one in enumerate(own) if number == 0 or at(one.hours) - at(own[number - 1].hours) > GAP_MS]
        for begin, end in zip(begins, [*begins[1:], len(own)], strict=True):
            day = own[begin:end]
            if at(day[-1].hours) + GAP_MS <= latest:
                delays = [one.dep_delay for one in day if one.dep_delay is not None]
                found.append((tailnum, at(day[0].hours), at(day[-1].hours), len(day), len(day) - len(delays), sum(delays)))
    return sorted(found)


def messages(brokers: Brokers, topic: str) -> list[tuple[str, dict[str, Any]]]:
    end = brokers.end(topic, 0)
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "nobody", "enable.auto.commit": False} | QUIET)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = [message for _ in range(end) if (message := consumer.poll(WITHIN_S)) is not None]
    finally:
        consumer.close()
    assert len(found) == end
    return [((message.key() or b"").decode(), json.loads(message.value() or b"null")) for message in found]
