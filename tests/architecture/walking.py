"""Which files of the project a request enters, in the order of their first call: a produced batch, a fetch, a JoinGroup.

Brokers share a process, a loop and the stores in memory. `python -m tests.architecture.walking` prints the walks.
"""

import asyncio
import contextlib
import datetime
import functools
import sys
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from kio.schema.create_topics.v4.request import CreatableTopic, CreateTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v2.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.static.primitive import i32Timedelta

from tests.kit.async_client import Appended, AsyncClient, parse_read
from tests.kit.clustering import Cluster, Member, running_cluster
from tests.kit.record_batches import record_batch

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("broker", "process", "storage", "runtime")
TOPIC: Final = "walked"
SESSION: Final = i32Timedelta.parse(datetime.timedelta(seconds=10))
WAITS_WITHIN_S: Final = 30.0
WAITING: Final = ("broker/delayed_fetch.py", "Wait.__enter__")
"""Called when a fetch has nothing to read and begins to wait."""

BESIDE_REQUESTS: Final = frozenset(
    {
        "stay-registered",
        "follow-format-level",
        "brokers-watch",
        "topics-watch",
        "neighbours",
        "probe",
        "groups",
        "groups-sweep",
        "groups-slots",
        "close-idle",
        "collect-garbage",
        "probes",
        "store-watch",
        "waiters",
    }
)
"""Tasks that a broker runs all the time, whatever is asked."""

broker_at_work: ContextVar[str] = ContextVar("broker_at_work", default="none")
"""Tasks, timers and sockets inherit it from who opened them: so it tells the brokers of one loop apart."""


@dataclass
class Walk:
    """What the broker `walked` entered while the walk was watched."""

    walked: str
    calls: dict[str, list[str]] = field(default_factory=dict)
    """By file, in the order of the first call: the functions that were called."""
    _reached: dict[tuple[str, str], asyncio.Event] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        return list(self.calls)

    def reaching(self, file: str, function: str) -> asyncio.Event:
        """Set when the function is called."""
        return self._reached.setdefault((file, function), asyncio.Event())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or (file := _file_of(frame.f_code.co_filename)) is None or broker_at_work.get() != self.walked:
            return
        task = _task()
        if task is None or task.get_name() not in BESIDE_REQUESTS:
            name = frame.f_code.co_qualname
            functions = self.calls.setdefault(file, [])
            if name not in functions:
                functions.append(name)
                if (reached := self._reached.get((file, name))) is not None:
                    reached.set()


@functools.cache
def _file_of(filename: str) -> str | None:
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT)
    return relative.as_posix() if relative.parts[0] in FOLDERS else None


def _task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@contextlib.asynccontextmanager
async def brokers(*names: str) -> AsyncIterator[list[Member]]:
    """Brokers of one cluster, which has a topic."""
    async with running_cluster() as cluster:
        members = [await _joined(cluster, name) for name in names]
        async with await AsyncClient.connect(members[0].port) as client:
            topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=())
            created = await client.ask(CreateTopicsRequest(topics=(topic,), timeout=SESSION))
        assert [one.error_code for one in created.topics] == [ErrorCode.none]
        yield members


async def _joined(cluster: Cluster, name: str) -> Member:
    token = broker_at_work.set(name)
    try:
        return await cluster.join()
    finally:
        broker_at_work.reset(token)


async def produce() -> Walk:
    """A batch, on a connection that has sent one to the same partition before."""
    walk = Walk("walked")
    async with brokers("walked") as (broker,), await AsyncClient.connect(broker.port) as client:
        await client.produce(TOPIC, {0: record_batch(b"before")})
        with walk.watched():
            produced = await client.produce(TOPIC, {0: record_batch(b"walked")})
    assert produced == {0: Appended(ErrorCode.none, 1)}
    return walk


async def fetch() -> Walk:
    """A fetch that finds nothing new, waits until another broker has committed a batch, and reads that from the object store."""
    walk = Walk("walked")
    async with (
        brokers("other", "walked") as (other, broker),
        await AsyncClient.connect(other.port) as writer,
        await AsyncClient.connect(broker.port) as reader,
    ):
        await writer.produce(TOPIC, {0: record_batch(b"before")})
        await reader.fetch(TOPIC, {0: 0})
        waits = walk.reaching(*WAITING)
        with walk.watched():
            reader.send_fetch(TOPIC, {0: 1}, max_wait_ms=60_000)
            async with asyncio.timeout(WAITS_WITHIN_S):
                await waits.wait()
            await writer.produce(TOPIC, {0: record_batch(b"walked")})
            fetched = parse_read(await reader.take())
    assert fetched[0].records == [(1, b"walked")]
    return walk


async def join_group() -> Walk:
    """The first member of a group, on a connection on which another group was joined before."""
    walk = Walk("walked")
    async with brokers("walked") as (broker,), await AsyncClient.connect(broker.port) as client:
        assert (await client.ask(_join("before"))).error_code is ErrorCode.none
        with walk.watched():
            joined = await client.ask(_join("walked"))
    assert (joined.error_code, joined.generation_id) == (ErrorCode.none, 1)
    return walk


def _join(group: str) -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"metadata")
    return JoinGroupRequest(
        group_id=group,
        session_timeout=SESSION,
        rebalance_timeout=SESSION,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )


if __name__ == "__main__":
    for walking in (produce, fetch, join_group):
        walk = asyncio.run(walking())
        print(f"{walking.__name__}: {len(walk.files)} files")
        for file, functions in walk.calls.items():
            print(f"    {file}: {', '.join(functions)}")
