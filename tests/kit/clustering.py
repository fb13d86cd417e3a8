"""Several brokers in one process over the same stores: they join and leave, lose their sessions, and name leaders as a test says.

The stores are in memory, or real ones where a test asks for them (`shared_stores`, a fixture to import).

async with running_cluster() as cluster:
    one, other = await cluster.join(), await cluster.join(rack="b")
    ...
    await cluster.leave(one)
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.assembly import Broker, open_broker
from broker.cluster.leadership import Leadership
from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from process.settings.model import Settings
from process.settings.notation import HttpAddress, Listener
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from services.oxia import running_oxia
from services.versitygw import running_s3
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.metered import MeteredMetadataStore
from storage.metadata.port import MetadataStore
from storage.objects.memory import MemoryObjectStore
from storage.objects.metered import MeteredObjectStore
from storage.opening import Stores

HOST = "127.0.0.1"
SOON_S = 60.0


@dataclass(frozen=True)
class SharedStores:
    """Servers that all brokers of a cluster use."""

    metadata_url: str
    storage_url: str


@pytest.fixture(params=["memory", "native"])
def shared_stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedStores | None]:
    """None: in memory; else an Oxia and an S3 server of the test's own."""
    if request.param == "memory":
        yield None
        return
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        yield SharedStores(oxia.url, s3.url())


Wrap = Callable[[MemoryMetadataStore], MetadataStore]


def _unchanged(store: MemoryMetadataStore) -> MetadataStore:
    return store


@dataclass
class Member:
    """A broker that listens, with its own client of the shared metadata. `left` is set when it is asked to go."""

    broker: Broker
    metadata: MemoryMetadataStore | None
    """None where that is a server."""
    left: asyncio.Event
    gone: asyncio.Event

    @property
    def port(self) -> int:
        return self.broker.listeners[0].port

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def broker_id(self) -> int:
        return self.broker.broker_id

    async def lose_session(self) -> None:
        """As when its keep-alives stay away for too long: its record is gone, and it is told."""
        assert self.metadata is not None
        for session in self.metadata._sessions:
            await session.close()

    def requests(self, name: str, **labels: str) -> float:
        """How often a counter of this broker was counted up, over all label values but those given."""
        return sum(
            sample.value
            for family in self.broker.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass
class Cluster:
    nursery: Nursery
    shards: int = 4
    shared: SharedStores | None = None
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metadata = MemoryMetadataStore(clock=SystemClock(), shards=self.shards)
        self.objects = MemoryObjectStore(clock=SystemClock())

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.members)

    async def join(
        self,
        *,
        broker_id: int | None = None,
        rack: str | None = None,
        leader: str = "self",
        leadership: Leadership | None = None,
        flush_interval: str = "5ms",
        early_bytes_per_second: str = "0B",
        http_port: int = 0,
        roles: str = "produce,consume,groups,admin",
        wrap: Wrap = _unchanged,
        fetch_limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    ) -> Member:
        """One more broker, when it is listed. `http_port`: where it says its HTTP API is; 0: nowhere.

        `leadership` is a strategy of the test's own; `wrap` stands between it and the metadata."""
        settings = Settings.model_validate(
            {
                "broker": {"id": broker_id, "rack": rack, "roles": roles},
                "kafka": {"listeners": (Listener("PLAINTEXT", HOST, 0),), "leader": leader},
                "http": {"listen": HttpAddress(HOST, http_port)},
                "storage": {
                    "url": self.shared.storage_url if self.shared else "memory://",
                    "flush_interval": flush_interval,
                    "early_bytes_per_second": early_bytes_per_second,
                },
                "metadata": {"url": self.shared.metadata_url if self.shared else "memory://"},
            }
        )
        metadata = self.metadata.client()
        left, gone = asyncio.Event(), asyncio.Event()
        opened: asyncio.Future[Broker] = asyncio.get_running_loop().create_future()

        @contextlib.asynccontextmanager
        async def stores(telemetry: Telemetry) -> AsyncIterator[Stores]:
            clock = SystemClock()
            yield Stores(MeteredMetadataStore(wrap(metadata), telemetry, clock), MeteredObjectStore(self.objects, telemetry, clock))
            await metadata.close()

        async def live() -> None:
            try:
                async with open_broker(
                    settings,
                    announce=_say_nothing,
                    stores=None if self.shared else stores,
                    leadership=leadership,
                    fetch_limits=fetch_limits,
                ) as broker:
                    opened.set_result(broker)
                    await left.wait()
                    await broker.drain(drain_s=0.2)
            except BaseException as error:
                if not opened.done():
                    opened.set_exception(error)
                    return
                raise
            finally:
                gone.set()

        self.nursery.spawn(live(), name="member")
        async with asyncio.timeout(SOON_S):
            member = Member(await opened, None if self.shared else metadata, left, gone)
        self.members.append(member)
        return member

    async def leave(self, member: Member) -> None:
        """It drains as on SIGTERM; returns when it is gone."""
        member.left.set()
        async with asyncio.timeout(SOON_S):
            await member.gone.wait()
        self.members.remove(member)


@contextlib.asynccontextmanager
async def running_cluster(*, shards: int = 4, shared: SharedStores | None = None) -> AsyncIterator[Cluster]:
    """Without a member yet; those that are left are drained in the end."""
    async with Nursery() as nursery:
        cluster = Cluster(nursery, shards, shared)
        try:
            yield cluster
        finally:
            for member in list(cluster.members):
                await cluster.leave(member)
            await cluster.metadata.close()


def _say_nothing(_stage: str, _facts: dict[str, Any]) -> None:
    pass
