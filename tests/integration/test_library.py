"""The log as a library: beside brokers of the same stores, killed, fenced, and where it is refused."""

import asyncio
import contextlib
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import forebay.embedded
import forebay.log
from forebay.embedded import embedded_broker
from forebay.log import Appended, CannotOpen, Group, Log, Record, RecordsRefused, open_log, open_log_sync
from runtime.clock import SystemClock
from storage.errors import AlreadyExists, Fenced, NotFound, OffsetOutOfRange, OutOfOrderSequence, Unavailable
from storage.formats.levels import LEVEL_MAX, LEVEL_OF_ROLES
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put
from storage.metadata.sqlite.store import SqliteMetadataStore
from tests.kit.clustering import HOST
from tests.kit.serving import ROOT, serving

SOON_S: Final = 60.0


def urls(folder: Path) -> tuple[str, str]:
    return f"sqlite:///{folder / 'meta.db'}", f"file://{folder / 'objects'}"


@asynccontextmanager
async def opened(folder: Path, *topics: str) -> AsyncIterator[Log]:
    async with open_log(*urls(folder)) as log:
        for topic in topics:
            await log.create_topic(topic)
        yield log


async def appended(log: Log, topic: str, *records: bytes | Record, **more: Any) -> Appended:
    (result,) = await log.append([Group(topic, 0, records, **more)])
    assert isinstance(result, Appended), result
    return result


async def values(log: Log, topic: str, offset: int = 0) -> list[bytes | None]:
    return [record.value async for record in log.iter_from(topic, 0, offset)]


async def test_what_is_appended_is_read_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    given = Record(b"value", key=b"key", headers=(("h", b"v"), ("none", None)), timestamp_ms=1_700_000_000_000)
    async with opened(tmp_path, "t") as log:
        first = await appended(log, "t", b"plain", given, Record(None, key=b"gone"))
        second = await appended(log, "t", *[b"%d" % number for number in range(2_000)])
        found = await log.read_range("t", 0, 0, 3)

        assert (first.start_offset, first.end_offset, second.start_offset, second.end_offset) == (0, 2, 3, 2_002)
        assert [(one.offset, one.key, one.value, one.headers) for one in found[1:]] == [
            (1, given.key, given.value, given.headers),
            (2, b"gone", None, ()),
        ]
        assert found[1].timestamp_ms == given.timestamp_ms
        assert found[0].timestamp_ms is not None
        assert await log.read_offset("t", 0, 2_002) == (await log.read_range("t", 0, 2_002))[0]
        assert await values(log, "t", 3) == [b"%d" % number for number in range(2_000)]
        assert await log.bounds("t", 0) == (0, 2_003)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_records_are_read_as_they_were(codec: Any, tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        (result,) = await log.append([Group("t", 0, [b"a" * 10_000] * 50)], compression=codec)

        assert isinstance(result, Appended)
        assert await values(log, "t") == [b"a" * 10_000] * 50


async def test_a_reader_in_a_mode_of_its_own_writes_nothing_and_says_how_to_write(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        await appended(log, "t", b"one")
    before = {path: path.read_bytes() for path in (tmp_path / "objects").rglob("*") if path.is_file()}
    async with open_log(*urls(tmp_path), mode="read") as log:
        assert await values(log, "t") == [b"one"]
        with pytest.raises(ValueError, match='mode="read": open it with mode="both" to write'):
            await log.append([Group("t", 0, [b"two"])])

    assert {path: path.read_bytes() for path in (tmp_path / "objects").rglob("*") if path.is_file()} == before
    async with open_log(*urls(tmp_path), mode="write") as log:
        with pytest.raises(ValueError, match='mode="write": open it with mode="both" to read'):
            await log.bounds("t", 0)


async def test_each_group_has_its_own_result(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        results = await log.append([Group("t", 0, [b"good"]), Group("none", 0, [b"x"]), Group("t", 7, [b"x"])])
        (large,) = await log.append([Group("t", 0, [b"x" * 2_000_000])])

        assert [type(one) for one in results] == [Appended, NotFound, NotFound]
        assert isinstance(large, RecordsRefused)
        assert "max.message.bytes is 1048588" in str(large)
        assert await values(log, "t") == [b"good"]


async def test_arguments_that_are_wrong_by_themselves_append_nothing(tmp_path: Path) -> None:
    wrong: list[tuple[type[Exception], str, list[Group]]] = [
        (ValueError, r"groups\[0\] \(t-0\): no records", [Group("t", 0, [])]),
        (ValueError, r"groups\[1\]: t-0 is named twice", [Group("t", 0, [b"a"]), Group("t", 0, [b"b"])]),
        (ValueError, "a producer and a sequence belong together", [Group("t", 0, [b"a"], 0)]),
        (TypeError, r"records\[0\] is str: give bytes, or a Record", [Group("t", 0, ["a"])]),  # type: ignore[list-item]
        (ValueError, r"records\[0\].timestamp_ms -5 is not from 0", [Group("t", 0, [Record(b"a", timestamp_ms=-5)])]),
        (TypeError, r"records\[0\].timestamp_ms is float", [Group("t", 0, [Record(b"a", timestamp_ms=1.5)])]),  # type: ignore[arg-type]
        (TypeError, r"records\[0\].value is str", [Group("t", 0, [Record("a")])]),  # type: ignore[arg-type]
        (TypeError, r"records\[0\].headers is not", [Group("t", 0, [Record(b"a", headers=((b"h", b"v"),))])]),  # type: ignore[arg-type]
        (TypeError, r"records\[0\].headers is not", [Group("t", 0, [Record(b"a", headers=None)])]),  # type: ignore[arg-type]
    ]
    async with opened(tmp_path, "t") as log:
        for kind, message, groups in wrong:
            with pytest.raises(kind, match=message):
                await log.append(groups)
        with pytest.raises(ValueError, match="compression='nope': expected one of none, gzip"):
            await log.append([Group("t", 0, [b"a"])], compression="nope")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is no producer"):
            await log.append([Group("t", 0, [b"a"], 0)], forebay.log.Producer(-1, 0))
        with pytest.raises(ValueError, match="sequence 2147483648 is not from 0"):
            await log.append([Group("t", 0, [b"a"], 2**31)], forebay.log.Producer(1, 0))
        with pytest.raises(ValueError, match="the topic name"):
            await log.create_topic("a b")
        with pytest.raises(ValueError, match="Kafka keeps the name for itself"):
            await log.create_topic("__cluster_metadata")
        await log.create_topic("a.b")
        with pytest.raises(AlreadyExists, match="which metrics write alike"):
            await log.create_topic("a_b")
        with pytest.raises(AlreadyExists):
            await log.create_topic("t")
        with pytest.raises(OffsetOutOfRange):
            await log.read_offset("t", 0, 0)

        assert await log.bounds("t", 0) == (0, 0)


async def test_readers_of_a_machine_share_a_folder_of_blocks(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    async with opened(tmp_path, "t") as log:
        for _ in range(3):
            await log.append([Group("t", 0, [b"x" * 30_000] * 30)])
    written = [path for path in (tmp_path / "objects").rglob("*") if path.is_file() and "wal" in path.parts]
    async with asyncio.timeout(60.0):
        # A block is kept after the read that brought it; a log that closes meanwhile does not keep it.
        while len([path for path in cache.rglob("*-*") if path.is_file() and path.stat().st_size > 10_000]) < len(written):
            async with open_log(*urls(tmp_path), mode="read", cache_dir=str(cache)) as log:
                assert len(await values(log, "t")) == 90

    for path in written:
        path.write_bytes(b"x" * path.stat().st_size)
    async with open_log(*urls(tmp_path), mode="read", cache_dir=str(cache)) as log:
        assert len(await values(log, "t")) == 90


async def test_what_is_appended_is_what_was_given_though_the_list_grows_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        records: list[bytes | Record] = [b"%d" % number for number in range(3)]
        appending = asyncio.get_running_loop().create_task(log.append([Group("t", 0, records)]))
        await asyncio.sleep(0)
        records += [b"late"] * 2
        (result,) = await appending

        assert isinstance(result, Appended)
        assert (result.start_offset, result.end_offset) == (0, 2)
        assert await values(log, "t") == [b"0", b"1", b"2"]


async def test_a_record_that_is_appended_while_it_is_looked_for_is_found_or_out_of_range(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log, open_log(*urls(tmp_path)) as other:
        for number in range(30):
            appending = asyncio.get_running_loop().create_task(appended(log, "t", b"%d" % number))
            found = None
            while found is None or found.value != b"%d" % number:
                with contextlib.suppress(OffsetOutOfRange):
                    found = await other.read_offset("t", 0, number)
                    assert found is not None, "nothing was compacted"
            await appending


async def test_a_topic_that_was_made_again_is_the_new_one(tmp_path: Path) -> None:
    async with embedded_broker(tmp_path) as broker, open_log(*urls(tmp_path)) as log, open_log(*urls(tmp_path)) as other:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        await log.create_topic("t")
        for number in range(3):
            appended_here = await appended(log, "t", b"%d" % number)
            read = await values(other, "t"), await other.bounds("t", 0)
            await asyncio.to_thread(lambda: admin.delete_topics(["t"])["t"].result(SOON_S))
            await asyncio.to_thread(lambda: admin.create_topics([NewTopic("t", 1, 1)])["t"].result(SOON_S))

            assert appended_here.start_offset == 0
            assert read == ([b"%d" % number], (0, 1))


async def test_programs_that_begin_together_take_no_id_of_a_broker(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as closing, opened(tmp_path, "t"):
        logs = await asyncio.gather(*[closing.enter_async_context(open_log(*urls(tmp_path))) for _ in range(8)])
        async with embedded_broker(tmp_path, settings={"broker": {"id": 1}}) as broker:
            assert broker.broker_id == 1
        offsets = [(await appended(log, "t", b"x")).start_offset for log in logs]

    assert offsets == list(range(8))


async def test_errors_of_the_body_come_out_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such topic"):
        async with opened(tmp_path) as log:
            await log.bounds("none", 0)
    with pytest.raises(ZeroDivisionError):
        async with embedded_broker(tmp_path):
            raise ZeroDivisionError


async def test_a_log_that_is_left_answers_what_was_begun_and_refuses_what_comes_later(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        begun = [asyncio.get_running_loop().create_task(log.append([Group("t", 0, [b"x" * 1_000])], compression="gzip")) for _ in range(20)]
        await asyncio.sleep(0)
    async with asyncio.timeout(SOON_S):
        results = [one for (one,) in await asyncio.gather(*begun)]
        for late in (log.append([Group("t", 0, [b"x"])]), log.fence("t", 0), log.bounds("t", 0), log.read_range("t", 0, 0)):
            with pytest.raises(Unavailable, match="the log is closed"):
                await late
    async with open_log(*urls(tmp_path)) as log:
        kept = len(await values(log, "t"))

    assert all(isinstance(one, Appended | Unavailable) for one in results)
    assert kept == sum(isinstance(one, Appended) for one in results)
    with open_log_sync(*urls(tmp_path)) as blocking:
        pass
    with pytest.raises(Unavailable, match="the log is closed"):
        blocking.bounds("t", 0)


def test_a_half_read_iterator_may_be_collected_in_any_thread(tmp_path: Path) -> None:
    with open_log_sync(*urls(tmp_path)) as log:
        log.create_topic("t")
        log.append([Group("t", 0, [b"%d" % number for number in range(3_000)])])
        for _ in range(20):
            half = log.iter_from("t", 0, 0)
            assert next(half).value == b"0"
            log._loop.call_soon_threadsafe(half.close)
            del half
        assert len(list(log.iter_from("t", 0, 0))) == 3_000


async def test_a_group_of_a_producer_that_is_appended_again_is_there_once(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        producer = await log.new_producer()
        first = await log.append([Group("t", 0, [b"a", b"b"], 0)], producer)
    async with open_log(*urls(tmp_path)) as log:
        again = await log.append([Group("t", 0, [b"a", b"b"], 0)], producer)
        (following,) = await log.append([Group("t", 0, [b"c"], 2)], producer)
        (gap,) = await log.append([Group("t", 0, [b"z"], 9)], producer)

        assert first == [Appended(0, 1, 0, False, 2)]
        assert again == [Appended(0, 1, 0, True, 2)]
        assert isinstance(following, Appended)
        assert isinstance(gap, OutOfOrderSequence)
        assert await values(log, "t") == [b"a", b"b", b"c"]


async def test_a_fenced_partition_takes_nothing_from_anybody_until_it_is_unfenced(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log, open_log(*urls(tmp_path)) as other:
        await appended(log, "t", b"before")
        ends = await log.fence("t", 0), await other.fence("t", 0)
        refused = [*await log.append([Group("t", 0, [b"x"])]), *await other.append([Group("t", 0, [b"x"])])]
        read = await values(other, "t")
        await other.unfence("t", 0)
        after = await appended(log, "t", b"after")

        assert ends == (1, 1)
        assert [type(one) for one in refused] == [Fenced, Fenced]
        assert read == [b"before"]
        assert after.start_offset == 1


async def test_a_compacted_partition_reads_as_before(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log:
        for number in range(20):
            await appended(log, "t", *[b"%d-%d" % (number, index) for index in range(50)])
        before = await values(log, "t")
        compacted = await log.compact_once("t", 0)
        again = await log.compact_once("t", 0)

        assert compacted > 0
        assert again == 0
        assert await values(log, "t") == before
        assert len(before) == 1_000
        assert list((tmp_path / "objects" / "segments").rglob("*"))


async def test_a_reader_that_follows_gets_what_others_append(tmp_path: Path) -> None:
    async with opened(tmp_path, "t") as log, open_log(*urls(tmp_path)) as other:
        await appended(log, "t", b"0")

        async def follow() -> list[bytes | None]:
            found = []
            async for record in log.iter_from("t", 0, 0, follow=True):
                found.append(record.value)
                if len(found) == 5:
                    break
            return found

        following = asyncio.get_running_loop().create_task(follow())
        for number in range(1, 5):
            await appended(log if number % 2 else other, "t", b"%d" % number)
        async with asyncio.timeout(SOON_S):
            found = await following

    assert found == [b"%d" % number for number in range(5)]


def test_code_without_an_event_loop_uses_the_same_log(tmp_path: Path) -> None:
    with open_log_sync(*urls(tmp_path)) as log:
        log.create_topic("t")
        producer = log.new_producer()
        results = [log.append([Group("t", 0, [b"a", b"b"], 0)], producer) for _ in range(2)]
        found = [record.value for record in log.iter_from("t", 0, 0)]
        (first, *_) = log.read_range("t", 0, 0)
        with pytest.raises(NotFound):
            log.bounds("none", 0)

        assert [one[0].is_duplicate for one in results if isinstance(one[0], Appended)] == [False, True]
        assert found == [b"a", b"b"]
        assert log.read_offset("t", 0, 0) == first
        assert log.compact_once("t", 0) == 1
        assert (log.fence("t", 0), log.unfence("t", 0)) == (2, 2)


def test_both_kinds_of_log_have_the_same_methods() -> None:
    def public(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(member).parameters) for name, member in members if not name.startswith("_")}

    assert {name: one for name, one in public(Log).items() if name not in ("steps_from", "close")} == public(forebay.log.SyncLog)


def test_two_modules_are_for_programs_of_others() -> None:
    assert sorted(forebay.log.__all__) == [
        "Appended",
        "Bounds",
        "CannotOpen",
        "Group",
        "Log",
        "Producer",
        "Record",
        "RecordsRefused",
        "StoredRecord",
        "SyncLog",
        "open_log",
        "open_log_sync",
    ]
    assert forebay.embedded.__all__ == ["EmbeddedBroker", "embedded_broker"]


async def test_brokers_and_the_library_share_one_log_and_clients_see_brokers_alone(tmp_path: Path) -> None:
    metadata_url, storage_url = urls(tmp_path)
    with serving(None, settings={"metadata.url": metadata_url, "storage.url": storage_url}) as broker:
        async with open_log(metadata_url, storage_url) as log:
            await log.create_topic("t")
            await appended(log, "t", b"library")
            told = await asyncio.to_thread(_by_kafka, broker.bootstrap)
            found = await values(log, "t")

    assert told == ({1: broker.bootstrap}, [b"library", b"kafka"])
    assert found == [b"library", b"kafka"]


def _by_kafka(bootstrap: str) -> tuple[dict[int, str], list[bytes]]:
    """Append by Kafka, and read in groups of several coordinators' slots; the brokers that clients are told of, and what was read."""
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.values()
    _produce(bootstrap)
    found: list[bytes] = []
    for group in ("a", "b", "c"):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found = []
        for _ in range(int(SOON_S)):
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(bytes(message.value() or b""))
            if len(found) == 2:
                break
        consumer.close()
    return {one.id: f"{one.host}:{one.port}" for one in listed}, found


def test_a_writer_that_is_killed_leaves_every_append_it_was_told_of_and_none_twice(tmp_path: Path) -> None:
    program = f"""
import asyncio
from forebay.log import *
async def main():
    async with open_log({urls(tmp_path)[0]!r}, {urls(tmp_path)[1]!r}) as log:
        await log.create_topic("t")
        producer, sequence = await log.new_producer(), 0
        print(*producer, flush=True)
        while True:
            (one,) = await log.append([Group("t", 0, [b"%d" % (sequence + place) for place in range(7)], sequence)], producer)
            sequence = one.next_sequence
            print(one.end_offset, flush=True)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        named = writer.stdout.readline().split()
        last = -1
        for line in writer.stdout:
            if line.strip().isdigit():
                last = int(line)
            if last > 300:
                os.kill(writer.pid, signal.SIGKILL)
                break
        rest = [int(line) for line in writer.stdout if line.strip().isdigit()]
    acked = max([last, *rest])
    with open_log_sync(*urls(tmp_path)) as log:
        producer = forebay.log.Producer(*map(int, named))
        group = Group("t", 0, [b"%d" % (acked + 1 + place) for place in range(7)], acked + 1)
        (again,) = log.append([group], producer)
        found = [record.value for record in log.iter_from("t", 0, 0)]

    assert isinstance(again, Appended)
    assert again.start_offset == acked + 1
    assert found == [b"%d" % number for number in range(acked + 8)]


async def test_a_cluster_below_the_level_of_roles_is_told_how_to_raise_it(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    async with _metadata(tmp_path) as metadata:
        (record,) = await metadata.get_many([keys.CLUSTER])
        assert record is not None
        older = record.value.replace(b'"level":%d' % LEVEL_MAX, b'"level":%d' % (LEVEL_OF_ROLES - 1))
        await metadata.write([Put(keys.CLUSTER, older, record.version)])
    with pytest.raises(CannotOpen, match=rf"needs format level {LEVEL_OF_ROLES}, and this cluster is at 3: .*forebay cluster upgrade"):
        async with open_log(*urls(tmp_path)):
            pass


@asynccontextmanager
async def _metadata(folder: Path) -> AsyncIterator[SqliteMetadataStore | MemoryMetadataStore]:
    from runtime.blocking import ThreadBlocking
    from runtime.ids import IdSource

    clock = SystemClock()
    store = await SqliteMetadataStore.open(
        folder / "meta.db", blocking=ThreadBlocking(threads=1, name="sqlite"), clock=clock, ids=IdSource(clock=clock)
    )
    try:
        yield store
    finally:
        await store.close()


async def test_what_cannot_be_opened_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with opened(tmp_path / "one"), opened(tmp_path / "two"):
        pass
    wrong: list[tuple[str, str, Any, str]] = [
        ("nowhere", "file:///x", "both", 'metadata.url missing "://"'),
        (*urls(tmp_path / "file" / "x"), "both", "Not a directory"),
        (*urls(tmp_path / "none"), "read", "does not exist"),
        (urls(tmp_path / "one")[0], urls(tmp_path / "two")[1], "both", "is the object store of cluster"),
        (urls(tmp_path / "one")[0], urls(tmp_path / "two")[1], "read", "is the object store of cluster"),
    ]
    for metadata_url, storage_url, mode, message in wrong:
        with pytest.raises(CannotOpen, match=message):
            async with open_log(metadata_url, storage_url, mode=mode):
                pass
    with pytest.raises(ValueError, match='mode="all": expected "both", "read" or "write"'):
        async with open_log(*urls(tmp_path), mode="all"):  # type: ignore[arg-type]
            pass
    for settings, message in (({"kafka": {"nope": 1}}, "kafka.nope is not a setting"), ({"nope": {}}, "nope is not a section")):
        with pytest.raises(CannotOpen, match=message):
            async with embedded_broker(settings=settings):
                pass
    with pytest.raises(CannotOpen, match="cannot be made: Not a directory"):
        async with embedded_broker(tmp_path / "file" / "x"):
            pass


async def test_an_embedded_broker_serves_clients_and_its_folder_keeps_the_log(tmp_path: Path) -> None:
    for expected in (0, 1):
        async with embedded_broker(tmp_path, settings={"kafka": {"auto_create_topics": True}}) as broker:
            offset = await asyncio.to_thread(_produce, broker.bootstrap)
            reader, writer = await asyncio.open_connection(HOST, int(broker.http.rpartition(":")[2]))
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            health = await reader.read()
            writer.close()

            assert offset == expected
            assert b'"ready":true' in health
    async with open_log(*urls(tmp_path)) as log:
        assert await values(log, "t") == [b"kafka", b"kafka"]
    async with embedded_broker() as broker:
        assert await asyncio.to_thread(_produce, broker.bootstrap) == 0


def _produce(bootstrap: str) -> int:
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("t", b"kafka", on_delivery=lambda error, message: offsets.append(-1 if error else message.offset()))
    assert producer.flush(SOON_S) == 0
    return offsets[0]
