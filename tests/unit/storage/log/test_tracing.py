"""The stages of a traced batch, and the traceparent that its first record carries."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.log.batch import Append, Appended, Batch, batch_of
from storage.log.partition import PartitionLog, Partitions
from storage.log.tracing import HEADERS_READ_MAX, BatchTrace, Stage, Tracing, traceparent_of
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId, TopicId
from tests.kit.record_batches import batch_of_records, varint

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HERE = (b"traceparent", PARENT.encode())


def one_record(*headers: tuple[bytes, bytes | None], key: bytes | None = None, value: bytes | None = b"v") -> bytes:
    body = b"\x00" + varint(0) + varint(0)
    for field in (key, value):
        body += varint(-1) if field is None else varint(len(field)) + field
    body += varint(len(headers))
    for name, text in headers:
        body += varint(len(name)) + name + (varint(-1) if text is None else varint(len(text)) + text)
    return varint(len(body)) + body


def found(*headers: tuple[bytes, bytes | None], codec: int = 0, **fields: bytes | None) -> str:
    return traceparent_of(memoryview(batch_of_records(one_record(*headers, **fields), 1, codec=codec)))


def test_the_first_record_s_traceparent_is_found_among_its_headers() -> None:
    others = [(b"h", None), (b"trace", b"x" * 300), (b"traceparent-of-another", b"y")]

    assert found(HERE) == PARENT
    assert found(*others, HERE, key=b"k" * 200, value=None) == PARENT
    assert found(*others) == ""
    second = one_record() + one_record(HERE)
    assert traceparent_of(memoryview(batch_of_records(second, 2))) == ""


def test_compressed_records_and_headers_behind_many_others_are_not_looked_into() -> None:
    many: list[tuple[bytes, bytes | None]] = [(b"h", b"v")] * (HEADERS_READ_MAX - 1)

    assert found(*many, HERE) == PARENT
    assert found(*many, (b"h", b"v"), HERE) == ""
    assert found(HERE, codec=1) == ""


@pytest.mark.parametrize("text", [b"", None, PARENT.encode() + b"-more", PARENT.encode().upper(), b"\xff" * 55, PARENT.encode()[1:]])
def test_a_traceparent_that_is_none_is_left_out(text: bytes | None) -> None:
    assert found((b"traceparent", text)) == ""


@given(st.binary(max_size=200), st.integers(1, 3))
def test_hostile_records_have_no_traceparent_and_break_nothing(records: bytes, count: int) -> None:
    assert traceparent_of(memoryview(batch_of_records(records, count))) == ""


def trace(**times_s: float) -> BatchTrace:
    known: dict[str, Any] = {"topic": "t", "partition": 0, "records": 1, "size_bytes": 70, "parent": "", "wall_s": 0}
    return BatchTrace(**known, began_s=1, submitted_s=2, settled_s=8, answered_s=9, **times_s)


def test_what_a_batch_went_through_are_its_stages_in_order() -> None:
    stored, carried, lost = trace(sealed_s=3, stored_s=5), trace(), trace(sealed_s=3)
    stored.outcome, lost.outcome = Appended(0, 0), Unavailable("away")

    assert stored.stages() == [Stage("gather", 2, 3), Stage("put", 3, 5), Stage("commit", 5, 8), Stage("ack", 8, 9)]
    assert carried.stages() == [Stage("commit", 2, 8), Stage("ack", 8, 9)]
    assert lost.stages() == [Stage("gather", 2, 3), Stage("put", 3, 8), Stage("ack", 8, 9)]


def test_each_batch_of_a_request_to_thousands_of_partitions_has_a_trace_and_the_request_one_answer() -> None:
    count, topic_id, submitted, answers, sent = 3_000, TopicId("01M8HK"), list[Batch](), list[Append](), list[BatchTrace]()
    clock, partitions = SystemClock(), Partitions()
    tracing = Tracing(sent.append, ratio=1.0, name_of=str, clock=clock, chance=random.Random(0))

    def take(_log: PartitionLog, batch: Batch) -> None:
        submitted.append(batch)

    append = Append("a connection", answers.append, [None] * count, count)
    tracing.arrive(append)
    submit = tracing.sampling(take)
    for index in range(count):
        view = memoryview(batch_of_records(one_record(), 1))
        submit(partitions.get(PartitionId(topic_id, index)), batch_of(view, parse_header(view), append, index))
    for batch in submitted:
        assert not answers
        batch.settle(Appended(7, 0))

    assert answers == [append]
    assert append.results == [Appended(7, 0)] * count
    assert [trace.partition for trace in sent] == list(range(count))
    assert all(trace.began_s <= trace.submitted_s <= trace.settled_s <= trace.answered_s for trace in sent)
