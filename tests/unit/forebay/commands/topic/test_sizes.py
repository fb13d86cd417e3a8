"""Sizes of partitions as brokers answer them, also brokers that do not."""

import io
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from kio.schema.describe_log_dirs.v1.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v1.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta, i64

from forebay.commands.raw_requests import read_sizes
from forebay.kafka_client.connection import BootstrapServer
from runtime.clock import SystemClock
from tests.kit.memory_watch import SOON_S

HEADER_BYTES = len(struct.pack(">hhih", 35, 1, 1, 7) + b"forebay")


@contextmanager
def broker(results: Sequence[DescribeLogDirsResult]) -> Iterator[tuple[BootstrapServer, list[list[tuple[str, list[int]]]]]]:
    """It answers one request, and says which partitions it was asked for."""
    asked: list[list[tuple[str, list[int]]]] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            request, _ = entity_reader(DescribeLogDirsRequest)(connection.recv(size, socket.MSG_WAITALL), HEADER_BYTES)
            asked.append([(str(topic.topic), [int(number) for number in topic.partitions]) for topic in request.topics or ()])
            body = io.BytesIO()
            answer = DescribeLogDirsResponse(throttle_time=i32Timedelta.parse(timedelta()), results=tuple(results))
            entity_writer(DescribeLogDirsResponse)(body, answer)
            connection.sendall(struct.pack(">ii", 4 + len(body.getvalue()), 1) + body.getvalue())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield BootstrapServer("127.0.0.1", listener.getsockname()[1]), asked
        thread.join(SOON_S)


def folder(
    *partitions: tuple[int, int], topic: str = "t", error: ErrorCode = ErrorCode.none, is_future: bool = False
) -> DescribeLogDirsResult:
    described = tuple(
        DescribeLogDirsPartition(partition_index=i32(number), partition_size=i64(size), offset_lag=i64(0), is_future_key=is_future)
        for number, size in partitions
    )
    topics = (DescribeLogDirsTopic(name=TopicName(topic), partitions=described),) if described else ()
    return DescribeLogDirsResult(error_code=error, log_dir="/data", topics=topics)


def test_each_leader_is_asked_for_what_it_leads() -> None:
    with broker([folder((0, 10), (2, 30))]) as (one, asked_one), broker([folder((1, 2**40))]) as (other, asked_other):
        sizes, failed = read_sizes("t", {one: [0, 2], other: [1]}, within_s=SOON_S, clock=SystemClock())

    assert sizes == {0: 10, 1: 2**40, 2: 30}
    assert failed == []
    assert (asked_one, asked_other) == ([[("t", [0, 2])]], [[("t", [1])]])


def test_a_log_that_is_being_moved_counts_once_and_other_topics_do_not() -> None:
    with broker([folder((0, 10)), folder((0, 7), is_future=True), folder((0, 99), topic="other")]) as (one, _):
        sizes, _ = read_sizes("t", {one: [0]}, within_s=SOON_S, clock=SystemClock())

    assert sizes == {0: 10}


def test_a_broker_that_refuses_or_is_gone_costs_its_own_partitions_and_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = BootstrapServer("127.0.0.1", closed.getsockname()[1])
    with broker([folder(error=ErrorCode.cluster_authorization_failed)]) as (refusing, _), broker([folder((2, 5))]) as (one, _):
        sizes, failed = read_sizes("t", {gone: [0], refusing: [1], one: [2]}, within_s=SOON_S, clock=SystemClock())

    assert sizes == {2: 5}
    assert [str(failure) for failure in failed] == [
        f"Cannot reach {gone} (connection refused).",
        f"{refusing} does not say how large partitions are: CLUSTER_AUTHORIZATION_FAILED (/data)",
    ]
