"""Probes of records: appended, read, found by offset and time, and every way to ask for that wrongly."""

import uuid
from collections.abc import Iterator
from typing import Any, Final

from runtime.clock import SystemClock
from storage.recordbatch import CODEC_MASK, HEADER_BYTES, checksum, parse_header
from storage.records import decompress_records
from tests.compat.second_opinion.asking import Line, until, versions
from tests.compat.second_opinion.topics import TIMEOUT_MS, append, create, topic, topic_id
from tests.kit.record_batches import record_batch

TIME_MS: Final = 1_700_000_000_000
CONTROL: Final = 0x20
TRANSACTIONAL: Final = 0x10
LOG_APPEND_TIME: Final = 0x08
WAIT_MS: Final = 1_000

_clock = SystemClock()


def _produce(name: str, batch: bytes, *, partition: int = 0, acks: int = -1, transactional_id: str | None = None) -> dict[str, Any]:
    data = [{"name": name, "partition_data": [{"index": partition, "records": batch}]}]
    return {"transactional_id": transactional_id, "acks": acks, "timeout": TIMEOUT_MS, "topic_data": data}


def appends(line: Line) -> None:
    create(
        line,
        *(topic(f"appended-{version}") for version in versions("Produce")),
        topic("small", max_message_bytes="200"),
        topic("stamped", message_timestamp_type="LogAppendTime"),
        topic("early", message_timestamp_after_max_ms="1000"),
        topic("late", message_timestamp_before_max_ms="1000"),
        topic("compacted", cleanup_policy="compact"),
    )
    for version in versions("Produce"):

        def asks(title: str, name: str, batch: bytes | bytearray, v: int = version, **more: Any) -> None:
            line.ask(title, "Produce", v, _produce(name, bytes(batch), **more))

        log = f"appended-{version}"
        good = record_batch(b"a", b"b")
        asks("two records", log, good)
        asks("one record, acks 1", log, record_batch(), acks=1)
        asks("acks 7", log, record_batch(), acks=7)
        asks("no such topic", "missing", good)
        asks("no such partition", log, good, partition=9)
        asks("a negative partition", log, good, partition=-1)
        asks("no records", log, b"")
        # Records of null are left out: Apache Kafka 4.3.1 never answers them.
        asks("three bytes", log, b"abc")
        asks("a wrong checksum", log, record_batch(crc=1))
        asks("cut short", log, good[:-1])
        asks("two batches", log, good + good)
        asks("magic 1", log, record_batch(magic=1))
        asks("magic 3", log, record_batch(magic=3))
        asks("base offset 5", log, record_batch(base_offset=5))
        asks("a control batch", log, record_batch(attributes=CONTROL))
        asks("a wrong record count", log, record_batch(b"a", record_count=2))
        asks("a wrong last offset", log, record_batch(b"a", last_offset_delta=4))
        asks("no record in the count", log, record_batch(b"a", record_count=0, last_offset_delta=-1))
        asks("transactional without an id", log, record_batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0))
        asks("a producer without sequence", log, record_batch(producer_id=1, producer_epoch=0))
        asks("codec 5", log, record_batch(attributes=5))
        for codec, name in ((1, "gzip"), (4, "zstd")):
            asks(name, log, record_batch(b"a", b"b", codec=codec))
        asks("too large", "small", record_batch(b"x" * 300))
        asks("stamped by the broker", "stamped", record_batch())
        asks("from the future", "early", record_batch(timestamps=(4_000_000_000_000,), base_timestamp=4_000_000_000_000))
        asks("from the past", "late", record_batch(timestamps=(1_000_000_000_000,), base_timestamp=1_000_000_000_000))
        asks("no key in a compacted topic", "compacted", record_batch(b"a", b"b"))
        asks("keys in a compacted topic", "compacted", record_batch(b"a", b"b", keys=(b"k", b"l")))
        # Last, for one broker takes them: the offsets after them differ.
        asks("bytes left over", log, good + b"\x00")
        asks("log append time set", log, record_batch(attributes=LOG_APPEND_TIME))


def codecs(line: Line) -> None:
    """Topics with a codec of their own: what they take, and in which codec it is read."""
    values = [b"value %d " % n * 9 for n in range(5)]
    times = [TIME_MS + n for n in (0, 9, 4, -7, 2)]
    for kept in ("producer", "uncompressed", *_CODECS):
        name = f"kept-{kept}"
        create(line, topic(name, compression_type=kept))
        for codec, sent in enumerate(("uncompressed", *_CODECS)):
            batch = record_batch(*values, timestamps=times, codec=codec)
            line.ask(f"{sent} to {kept}", "Produce", 9, _produce(name, bytes(batch)))
            if codec and kept not in ("producer", sent):
                line.ask(f"what does not decompress, {sent}, to {kept}", "Produce", 9, _produce(name, _broken(codec)))
        few = record_batch(b"a", codec=1, record_count=50, last_offset_delta=49)
        if kept not in ("producer", "gzip"):
            line.ask(f"fewer records than it says, to {kept}", "Produce", 9, _produce(name, bytes(few)))
        asked = [{"topic": name, "partitions": [_fetched(0)]}]
        answer = line.ask("", "Fetch", 11, {**_FETCH, "topics": asked}, kept=False)
        found = bytes.fromhex(answer["responses"][0]["partitions"][0]["records"])
        line.asked.keep(f"what is kept as {kept}", "Fetch", 11, {"batches": [_unpacked(batch) for batch in _split(found)]})
    create(
        line,
        topic("kept-small", compression_type="uncompressed", max_message_bytes="1000"),
        topic("kept-leveled", compression_type="gzip", compression_gzip_level="9"),
        topic("kept-stamped", compression_type="gzip", message_timestamp_type="LogAppendTime"),
    )
    line.ask("too large when it is kept", "Produce", 9, _produce("kept-small", bytes(record_batch(bytes(5_000), codec=1))))
    for name in ("kept-leveled", "kept-stamped"):
        line.ask(f"to {name}", "Produce", 9, _produce(name, bytes(record_batch(b"a"))))


def header_times(line: Line) -> None:
    """Batches whose header has another greatest time than their records: what is kept, and what is found by time."""
    times = (TIME_MS, TIME_MS + 2_000, TIME_MS + 4_000)
    ahead = 4_000_000_000_000
    kinds = {"a topic": {}, "a compacted topic": {"cleanup_policy": "compact"}, "a zstd topic": {"compression_type": "zstd"}}
    sent = {
        "no greatest time": {"max_timestamp": -1},
        "a greatest time of 0": {"max_timestamp": 0},
        "the first one's time": {"max_timestamp": TIME_MS},
        "the first one's time, gzip": {"max_timestamp": TIME_MS, "codec": 1},
        "a time far ahead": {"max_timestamp": ahead},
        "a time within": {"max_timestamp": TIME_MS + 1},
    }
    for number, (kind, configs) in enumerate(kinds.items()):
        for place, (said, header) in enumerate(sent.items()):
            name = f"dated-{number}-{place}"
            create(line, topic(name, **configs))
            batch = record_batch(b"a", b"b", b"c", keys=(b"k",) * 3, timestamps=times, **header)
            _found_by_time(line, f"{said}, to {kind}", name, batch)
    others = {
        "one record without greatest time": record_batch(b"a", base_timestamp=TIME_MS, max_timestamp=-1),
        "one record with a later one": record_batch(b"a", base_timestamp=TIME_MS, max_timestamp=TIME_MS + 9),
        "records without time": record_batch(b"a", b"b", base_timestamp=-1),
        "no greatest time, a record far ahead": record_batch(
            b"a", b"b", timestamps=(TIME_MS, ahead), base_timestamp=TIME_MS, max_timestamp=-1
        ),
    }
    for number, (title, batch) in enumerate(others.items()):
        create(line, topic(f"dated-{number}"))
        _found_by_time(line, title, f"dated-{number}", batch)


def _found_by_time(line: Line, title: str, name: str, batch: bytes | bytearray) -> None:
    line.ask(title, "Produce", 9, _produce(name, bytes(batch)))
    for timestamp in (TIME_MS + 1, TIME_MS + 4_000, TIME_MS + 4_001, -3):
        asked = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        line.ask(f"{title}: {timestamp}", "ListOffsets", 7, {"replica_id": -1, "isolation_level": 0, "topics": asked})
    answer = line.ask("", "Fetch", 11, {**_FETCH, "topics": [{"topic": name, "partitions": [_fetched(0)]}]}, kept=False)
    found = bytes.fromhex(answer["responses"][0]["partitions"][0]["records"] or "")
    line.asked.keep(f"what is kept of {title}", "Fetch", 11, {"times": [parse_header(each).max_timestamp for each in _split(found)]})


_CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
_FETCH: Final = {"replica_id": -1, "max_wait": WAIT_MS, "min_bytes": 1, "max_bytes": 1 << 20}


def _fetched(offset: int) -> dict[str, int]:
    return {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "partition_max_bytes": 1 << 20}


def _broken(codec: int) -> bytes:
    batch = record_batch(b"x" * 100, codec=codec)
    batch[HEADER_BYTES + 6 :] = b"\xff" * (len(batch) - HEADER_BYTES - 6)
    batch[17:21] = checksum(batch).to_bytes(4, "big")
    return bytes(batch)


def _split(data: bytes) -> Iterator[bytes]:
    while data:
        size = parse_header(data).size_bytes
        yield data[:size]
        data = data[size:]


def _unpacked(batch: bytes) -> dict[str, Any]:
    """What is the same whoever compressed it."""
    header = parse_header(batch)
    records = decompress_records(batch[HEADER_BYTES:], header.attributes & CODEC_MASK)
    return {**header._replace(batch_length=0, crc=0)._asdict(), "records": bytes(records).hex(), "is_whole": checksum(batch) == header.crc}


def sequences(line: Line) -> None:
    create(line, topic("sequenced"))
    asked = {"transactional_id": None, "transaction_timeout": TIMEOUT_MS}
    until(lambda: not line.ask("", "InitProducerId", 4, asked, kept=False)["error_code"])
    producer_id = line.ask("a new producer", "InitProducerId", 4, asked)["producer_id"]

    def asks(title: str, base_sequence: int, *values: bytes, epoch: int = 0, pid: int = producer_id) -> None:
        batch = record_batch(*values, producer_id=pid, producer_epoch=epoch, base_sequence=base_sequence)
        line.ask(title, "Produce", 9, _produce("sequenced", bytes(batch)))

    asks("0", 0, b"a", b"b")
    asks("0 again", 0, b"a", b"b")
    asks("2", 2, b"c")
    asks("0 again, later", 0, b"a", b"b")
    asks("a gap", 9, b"d")
    asks("overlapping", 1, b"b", b"c")
    for sequence in range(3, 9):
        asks(f"{sequence}", sequence, b"e")
    asks("0 again, forgotten", 0, b"a", b"b")
    asks("a newer epoch from 5", 5, b"f", epoch=1)
    asks("a newer epoch", 0, b"f", epoch=1)
    asks("the older epoch", 9, b"f", epoch=0)
    for version in versions("InitProducerId"):
        line.ask("another producer", "InitProducerId", version, asked)
        if version >= 3:
            line.ask(
                "an id and an epoch without a transactional id",
                "InitProducerId",
                version,
                {**asked, "producer_id": producer_id, "producer_epoch": 1},
            )
            line.ask("an id without an epoch", "InitProducerId", version, {**asked, "producer_id": producer_id, "producer_epoch": -1})
            line.ask("an epoch without an id", "InitProducerId", version, {**asked, "producer_id": -1, "producer_epoch": 4})
    line.ask(
        "of three partitions",
        "DescribeProducers",
        0,
        {"topics": [{"name": "sequenced", "partition_indexes": [0, 7]}, {"name": "missing", "partition_indexes": [0]}]},
    )


def reads(line: Line) -> None:
    create(line, topic("read", 2))
    append(line, "read", 0, record_batch(b"a", b"b"), record_batch(b"c"), record_batch(b"d", codec=4))
    known = topic_id(line, "read")
    line.ask(
        "",
        "DeleteRecords",
        2,
        {"topics": [{"name": "read", "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout": TIMEOUT_MS},
        kept=False,
    )
    for version in versions("Fetch"):

        def asks(
            title: str, offset: int, partition: int = 0, name: str = "read", topic_id: uuid.UUID = known, v: int = version, **more: Any
        ) -> None:
            head = {
                key: more.pop(key) for key in ("session_id", "session_epoch", "min_bytes", "max_bytes", "isolation_level") if key in more
            }
            part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **more}
            fields = {"max_wait": 0, "max_bytes": 1 << 20, "session_epoch": -1, **head}
            line.ask(title, "Fetch", v, {**fields, "topics": [{"topic": name, "topic_id": topic_id, "partitions": [part]}]})

        asks("from the log start", 1)
        asks("from the middle of a batch", 2)
        asks("one byte", 1, partition_max_bytes=1)
        asks("one byte in all", 1, max_bytes=1)
        asks("at the end", 4)
        asks("before the log start", 0)
        asks("past the end", 5)
        asks("minus one", -1)
        asks("an empty partition", 0, 1)
        asks("no such partition", 0, 9)
        asks("no such topic", 0, 0, "missing", uuid.UUID(int=54321))
        asks("read committed", 1, isolation_level=1)
        if version >= 7:
            asks("a session that is not", 1, session_id=77, session_epoch=3)
            asks("a session, second request first", 1, session_id=0, session_epoch=3)
        if version >= 9:
            asks("an epoch to come", 1, current_leader_epoch=5)
        if version >= 12:
            asks("an old epoch last fetched", 1, last_fetched_epoch=0)
    line.ask("nothing", "Fetch", 11, {"max_wait": 0, "session_epoch": -1, "topics": []})


def offsets(line: Line) -> None:
    create(line, topic("listed", 2))
    append(line, "listed", 0, record_batch(b"a", b"b", timestamps=(TIME_MS, TIME_MS + 10)), record_batch(b"c", timestamps=(TIME_MS + 5,)))
    for version in versions("ListOffsets"):

        def asks(
            title: str, timestamp: int, name: str = "listed", partition: int = 0, v: int = version, isolation: int = 0, **more: Any
        ) -> None:
            parts = [{"partition_index": partition, "timestamp": timestamp, **more}]
            line.ask(
                title, "ListOffsets", v, {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": name, "partitions": parts}]}
            )

        asks("latest", -1)
        asks("latest committed", -1, isolation=1)
        asks("earliest", -2)
        for timestamp in range(-3, -9, -1):
            asks(f"timestamp {timestamp}", timestamp)
        asks("the time of the first", TIME_MS)
        asks("between", TIME_MS + 1)
        asks("of the largest", TIME_MS + 10)
        asks("later than all", TIME_MS + 11)
        asks("long ago", 0)
        asks("the latest of an empty partition", -1, partition=1)
        asks("a time in an empty partition", TIME_MS, partition=1)
        asks("the largest time of an empty partition", -3, partition=1)
        asks("no such partition", -1, partition=9)
        asks("no such topic", -1, name="missing")
        if version >= 4:
            asks("an epoch to come", -1, current_leader_epoch=9)
            asks("epoch 0", -1, current_leader_epoch=0)
    twice = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
    line.ask("one partition twice", "ListOffsets", 7, {"replica_id": -1, "topics": [{"name": "listed", "partitions": twice}]})
    for version in versions("OffsetForLeaderEpoch"):
        for epoch in (-1, 0, 5):
            for current in (-1, 0, 3):
                for partition in (0, 9):
                    asked = [{"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}]
                    title = f"partition {partition} epoch {epoch} at {current}"
                    line.ask(
                        title, "OffsetForLeaderEpoch", version, {"replica_id": -1, "topics": [{"topic": "listed", "partitions": asked}]}
                    )
        asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
        line.ask(
            "no such topic", "OffsetForLeaderEpoch", version, {"replica_id": -1, "topics": [{"topic": "missing", "partitions": asked}]}
        )


def several(line: Line) -> None:
    """Several partitions and topics in one request, of which some fail."""
    create(line, topic("several", 3), topic("several-too", 1), topic("tight", 1, max_message_bytes="200"))
    good, bad, large = bytes(record_batch(b"a", b"b")), bytes(record_batch(crc=1)), bytes(record_batch(b"x" * 300))
    for version in versions("Produce"):
        data = [
            {
                "name": "several",
                "partition_data": [{"index": index, "records": batch} for index, batch in ((0, good), (1, bad), (9, good), (2, good))],
            },
            {"name": "missing", "partition_data": [{"index": 0, "records": good}]},
            {"name": "tight", "partition_data": [{"index": 0, "records": large}]},
            {"name": "several-too", "partition_data": [{"index": 0, "records": good}]},
        ]
        line.ask(
            "to several, some fail", "Produce", version, {"transactional_id": None, "acks": -1, "timeout": TIMEOUT_MS, "topic_data": data}
        )
        twice = [{"name": "several-too", "partition_data": [{"index": 0, "records": good}]}, {"name": "several", "partition_data": []}]
        line.ask(
            "a topic of no partitions",
            "Produce",
            version,
            {"transactional_id": None, "acks": 1, "timeout": TIMEOUT_MS, "topic_data": twice},
        )
        line.ask("nothing", "Produce", version, {"transactional_id": None, "acks": -1, "timeout": TIMEOUT_MS, "topic_data": []})
    ends = [{"partition_index": index, "timestamp": -1} for index in range(3)]
    line.ask("after several", "ListOffsets", 7, {"replica_id": -1, "topics": [{"name": "several", "partitions": ends}]})


def waits(line: Line) -> None:
    """How long Fetch waits for how much; what it took is told as one of three words."""
    create(line, topic("waited", 2))
    append(line, "waited", 0, record_batch(b"a", b"b"))
    known = topic_id(line, "waited")
    for version in (4, 17):

        def asks(title: str, *offsets: tuple[int, int], v: int = version, **more: Any) -> None:
            parts = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20} for partition, offset in offsets]
            fields = {"max_wait": WAIT_MS, "max_bytes": 1 << 20, "min_bytes": 1, "session_epoch": -1, **more}
            began_s = _clock.monotonic_s()
            line.ask(title, "Fetch", v, {**fields, "topics": [{"topic": "waited", "topic_id": known, "partitions": parts}]})
            took_ms = 1e3 * (_clock.monotonic_s() - began_s)
            line.asked.keep(f"{title}: how long", "Fetch", v, {"waited": took_ms > WAIT_MS * 0.9})

        asks("something is there", (0, 0))
        asks("nothing is there", (0, 2))
        asks("nothing is there and nothing is wanted", (0, 2), min_bytes=0)
        asks("less than wanted is there", (0, 0), min_bytes=10_000)
        asks("as much as fits is there", (0, 0), min_bytes=10_000, max_bytes=10)
        asks("one of two has something", (1, 0), (0, 0))
        asks("one of two is past the end", (1, 0), (0, 9))
        asks("one of two is not there", (1, 0), (7, 0))
        asks("no partition")
        asks("one partition twice", (0, 0), (0, 0))
        if version >= 7:
            asks("a session begins", (0, 0), session_epoch=0)
            asks("a session ends", (0, 0), session_id=77, session_epoch=-1)
            asks("a session begins anew", (0, 0), session_id=77, session_epoch=0)
            asks("a session of a negative epoch", (0, 0), session_id=77, session_epoch=-2)
            asks(
                "a session forgets what it never had",
                (0, 0),
                forgotten_topics_data=[{"topic": "waited", "topic_id": known, "partitions": [1]}],
            )


def duplicates(line: Line) -> None:
    """After `offsets`."""
    for version in versions("ListOffsets"):
        twice = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -1}, {"partition_index": 1, "timestamp": -2}]
        line.ask(
            "one partition twice, another", "ListOffsets", version, {"replica_id": -1, "topics": [{"name": "listed", "partitions": twice}]}
        )
        halves = [{"name": "listed", "partitions": [{"partition_index": index, "timestamp": -1}]} for index in (0, 1)]
        line.ask("one topic twice", "ListOffsets", version, {"replica_id": -1, "topics": halves})
        line.ask("nothing", "ListOffsets", version, {"replica_id": -1, "topics": []})
    line.ask("by a replica, one topic twice", "ListOffsets", 7, {"replica_id": 1, "topics": halves})


PROBES: Final = (appends, codecs, header_times, sequences, reads, offsets, several, waits, duplicates)
