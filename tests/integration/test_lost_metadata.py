"""`rm meta.db*` under a broker: nothing is acknowledged that a restart would not find, everybody is told, and the data can be saved."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest

from tests.kit.async_client import AsyncClient
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served, get, serving

WITHIN_S = 20.0
TOPIC = "t"
PARTITIONS = 4
ACKED_BEFORE = 50
RETRIABLE = {7, 56}
"""REQUEST_TIMED_OUT, of a commit whose outcome is unknown; KAFKA_STORAGE_ERROR, of one that certainly was none."""
SUFFIXES = ("", "-wal", "-shm")


@dataclass
class Traffic:
    """One producer per partition, which sends a record when it has the answer to the last one, until one is refused."""

    port: int
    removed: bool = False
    acked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(partition, offset) → value."""
    acked_after: list[bytes] = field(default_factory=list)
    """Sent when the files were gone already."""
    refused: dict[int, int] = field(default_factory=dict)
    """Partition → error."""

    async def produce(self, partition: int) -> None:
        async with await AsyncClient.connect(self.port) as client:
            number = 0
            while partition not in self.refused:
                number += 1
                value, was_removed = f"{partition}:{number}".encode(), self.removed
                appended = (await client.produce(TOPIC, {partition: bytes(record_batch(value))}))[partition]
                if appended.error:
                    self.refused[partition] = appended.error
                    continue
                self.acked[partition, appended.base_offset] = value
                if was_removed:
                    self.acked_after.append(value)


async def create_topic(port: int) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=())
    async with await AsyncClient.connect(port) as client:
        answer = await client.ask(CreateTopicsRequest(topics=(topic,)))
    assert [found.error_code for found in answer.topics] == [0]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.01)


def readiness(served: Served) -> tuple[int, str | None]:
    """What /readyz answers, and what it says of the metadata store."""
    status, body = get(served.http_port, "/readyz")
    return status, json.loads(body)["checks"]["metadata"]["error"]


def is_ready(served: Served) -> bool:
    return readiness(served)[0] == HTTPStatus.OK


def losses_in_log(served: Served) -> list[object]:
    return [event["cause"] for event in served.events() if event["event"] == "metadata_file_lost" and event["level"] == "error"]


def saved(served: Served, name: str, folder: Path) -> Path:
    """As docs/guides/backup.md says."""
    for descriptor in Path(f"/proc/{served.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).endswith(f"/{name} (deleted)"):
                return Path(shutil.copy(descriptor, folder / f"saved-{name}"))
    raise AssertionError(f"the broker does not hold {name}")


async def test_nothing_is_acknowledged_once_the_files_are_removed_and_what_was_before_can_be_saved(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        await create_topic(served.kafka_port)
        traffic = Traffic(served.kafka_port)
        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as producers:
            for partition in range(PARTITIONS):
                producers.create_task(traffic.produce(partition))
            await until(lambda: len(traffic.acked) >= ACKED_BEFORE)
            for suffix in SUFFIXES:
                (tmp_path / f"meta.db{suffix}").unlink()
            traffic.removed = True
        await until(lambda: not is_ready(served))

        assert traffic.acked_after == []
        assert set(traffic.refused.values()) <= RETRIABLE
        cause = f"the metadata file was removed while it was open: path={str(tmp_path / 'meta.db')!r}"
        assert readiness(served) == (HTTPStatus.SERVICE_UNAVAILABLE, cause)
        await until(lambda: losses_in_log(served) == [cause])
        await until(lambda: served.metrics()["forebay_metadata_file_lost"] == 1)
        files = {name: saved(served, name, tmp_path) for name in ("meta.db", "meta.db-wal")}
        served.kill9()
    for name, copy in files.items():
        copy.rename(tmp_path / name)
    with serving(tmp_path) as again:
        async with await AsyncClient.connect(again.kafka_port) as client:
            found: dict[tuple[int, int], bytes] = {}
            ends = dict.fromkeys(range(PARTITIONS), 0)
            is_more = True
            while is_more:  # an answer has so many objects and no more
                read = await client.fetch(TOPIC, ends)
                news = {(partition, offset): value for partition, part in read.items() for offset, value in part.records}
                found |= news
                ends = {partition: max([end, *(offset + 1 for of, offset in news if of == partition)]) for partition, end in ends.items()}
                is_more = bool(news)

        assert traffic.acked.items() <= found.items()


async def test_an_idle_broker_says_that_its_file_was_replaced_and_stops_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert served.metrics()["forebay_metadata_file_lost"] == 0
        shutil.copy(tmp_path / "meta.db", tmp_path / "copy.db")
        (tmp_path / "copy.db").rename(tmp_path / "meta.db")
        await until(lambda: not is_ready(served))

        cause = f"the metadata file was replaced while it was open: path={str(tmp_path / 'meta.db')!r}"
        assert readiness(served) == (HTTPStatus.SERVICE_UNAVAILABLE, cause)
        await until(lambda: losses_in_log(served) == [cause])
        assert served.terminate() == 0
