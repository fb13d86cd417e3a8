"""Measured beside the clusters: hints that a broker has no use for, placing a partition, and how many writers a log has room for."""

import asyncio
import itertools
import time
from concurrent import futures
from typing import Final

import grpc

from bench.scale.cluster import TOPIC, running
from bench.scale.loads import ANY_BROKER, LOADS, Shape
from broker.cluster.leadership import Asker, Candidate, PartitionLeadership, Question
from broker.cluster.ownership import CLAIMS_PREFIX
from process.event_loop import run
from sim.loop import VirtualLoop
from storage.errors import StorageError
from storage.log.batch import Append
from storage.log.partition import Partitions
from storage.metadata.hints import Hints
from storage.metadata.keys import BROKERS_PREFIX, TOPICS_PREFIX, PartitionKeys
from storage.metadata.oxia import wire_pb2 as wire
from storage.vocabulary import PartitionId

HINTS: Final = 100_000
HINTS_PER_MESSAGE: Final = 50
MESSAGES: Final = 20_000
PLACED: Final = 200
WRITERS_TRIED: Final = 1_000
EPOCH_FIRST: Final = 1_000_000
"""Epochs are versions of records: those of a cluster that has lived for a while have seven digits."""


def hint_cpu_s(hints: int = HINTS) -> float:
    """CPU seconds that a broker's loop takes for a hint of a partition that it does not know, once its message is read. The subscriptions
    are those of a broker: one to everything, four to a prefix.
    """
    return run(_hear(hints))


async def _hear(count: int) -> float:
    hints, partitions = Hints(), Partitions()
    heard = 0

    def hear(path: str, _version: int | None) -> None:
        nonlocal heard
        heard += 1
        assert partitions.by_manifest_path(path) is None

    hints.subscribe(hear, "")
    for prefix in (TOPICS_PREFIX, BROKERS_PREFIX, CLAIMS_PREFIX, CLAIMS_PREFIX):
        hints.subscribe(hear, prefix)
    sent = _message(HINTS_PER_MESSAGE)
    began_s = time.thread_time()
    for _ in range(count // HINTS_PER_MESSAGE):
        changes = wire.NotificationBatch.FromString(sent).notifications.items()
        hints.publish([(path, change.version_id or None) for path, change in changes if not path.startswith("__oxia/")])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    cpu_s = time.thread_time() - began_s
    assert heard == count, f"hints were lost: {heard} of {count}"
    return cpu_s / count


def message_cpu_s(messages: int = MESSAGES) -> float:
    """CPU seconds that a broker's loop takes to receive a message of the stream of hints, with one hint in it. The server runs in another
    thread, and gRPC has some of its own: none of these is counted.
    """
    with futures.ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, handlers=[_Stream(_message(1), messages)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            return asyncio.run(_receive(port, messages))
        finally:
            server.stop(0).wait()


class _Stream(grpc.GenericRpcHandler):
    def __init__(self, message: bytes, count: int) -> None:
        self._message = message
        self._count = count

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":  # noqa: ARG002
        return grpc.unary_stream_rpc_method_handler(lambda _request, _context: itertools.repeat(self._message, self._count))


async def _receive(port: int, count: int) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, wire.NotificationBatch] = channel.unary_stream(
            "/hints/stream", response_deserializer=wire.NotificationBatch.FromString
        )
        call = method(b"")
        received = 0
        began_s = time.thread_time()
        while await call.read() is not grpc.aio.EOF:
            received += 1
        assert received == count, f"messages were lost: {received} of {count}"
        return (time.thread_time() - began_s) / count


def _message(hints: int) -> bytes:
    batch = wire.NotificationBatch()
    for number in range(hints):
        batch.notifications[PartitionKeys(PartitionId(TOPIC, number)).manifest.path].SetInParent()
    return batch.SerializeToString()


def placement_cpu_s(brokers: int, placed: int = PLACED) -> float:
    """CPU seconds that a Metadata answer takes to place one partition under `kafka.leader: partition`."""
    live = [Candidate(number, None) for number in range(1, brokers + 1)]
    place = PartitionLeadership().placement(Question(Asker("client", "host"), 1, live))
    began_s = time.thread_time()
    for partition in range(placed):
        place(TOPIC, partition)
    return (time.thread_time() - began_s) / placed


def writers_max(tried: int = WRITERS_TRIED) -> int | None:
    """How many live brokers commit to one partition, one after the other, before a commit is refused for want of room in the manifest
    record; None if all that were tried do. Must not be called from a running loop.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_write_all(tried))


async def _write_all(tried: int) -> int | None:
    shape = Shape(LOADS[0], ANY_BROKER, tried, 1)
    async with running(shape, epoch_first=EPOCH_FIRST) as cluster:
        await cluster.fill()
        for number, broker in enumerate(cluster.brokers):
            answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

            def settle(append: Append, answered: "asyncio.Future[object]" = answered) -> None:
                answered.set_result(append.results[0])

            broker.submit(0, cluster.template, shape.load.batch_records, settle)
            if isinstance(await answered, StorageError):
                return number
    return None
