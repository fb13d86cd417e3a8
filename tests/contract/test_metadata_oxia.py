import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given, settings

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from services.oxia import OxiaServer, running_oxia
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.sessions import OxiaSession
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import MetadataStore, Session, WriteOp
from tests.contract.metadata_contract import MetadataStoreContract
from tests.contract.test_metadata_differential import NAMES, RANGES, Action, DeleteRangeStep, DeleteStep, Player, PutStep, scripts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaServer]:
    with running_oxia(tmp_path_factory.mktemp("oxia")) as server:
        yield server


class TestOxiaMetadataStore(MetadataStoreContract):
    @pytest.fixture
    async def store(self, server: OxiaServer) -> AsyncIterator[MetadataStore]:
        async with Nursery() as nursery:
            store = await OxiaMetadataStore.open(parse_oxia_url(server.url), clock=SystemClock(), chance=random.Random(), nursery=nursery)
            yield store
            await store.close()

    async def expire(self, session: Session) -> None:
        assert isinstance(session, OxiaSession)
        session.stop_keeping_alive()


def parent_of(name: str) -> str:
    return name.rpartition("/")[0]


class PlayerUnderOneParent(Player):
    """Keeps to what stores must agree on: ranges and ceilings under one parent."""

    def _op(self, step: PutStep | DeleteStep | DeleteRangeStep) -> WriteOp:
        if isinstance(step, DeleteRangeStep) and parent_of(step.start) != parent_of(step.end):
            step = DeleteRangeStep("d/", "d/~")
        return super()._op(step)

    async def _contents(self) -> list[object]:
        seen: list[object] = []
        for record in await self.store.get_many([self._key(name) for name in NAMES]):
            if record is not None:
                name = record.path.removeprefix(f"{self.root}/")
                seen.append((name, record.value, self.versions[name].index(record.version)))
        for start, end in RANGES:
            if parent_of(start) == parent_of(end):
                paths = await self.store.list(self._key(start), f"{self.root}/{end}")
                assert paths == [record.path async for record in self.store.range_scan(self._key(start), f"{self.root}/{end}")]
                seen.append([path.removeprefix(self.root) for path in paths])
        for name in NAMES:
            for within in ("", "d/", "d/1", "d/1/", name):
                if parent_of(name) == parent_of(within):
                    ceiling = await self.store.get_ceiling(self._key(name), within=f"{self.root}/{within}")
                    seen.append(ceiling and ceiling.path.removeprefix(self.root))
        return seen


def test_memory_and_oxia_answer_alike(server: OxiaServer) -> None:
    clock = SystemClock()
    ids = IdSource(clock=clock)
    memory = MemoryMetadataStore(clock=clock, shards=1)

    async def play(script: list[Action]) -> None:
        root = f"script-{ids.next_ulid()}"
        async with Nursery() as nursery:
            oxia = await OxiaMetadataStore.open(parse_oxia_url(server.url), clock=clock, chance=random.Random(), nursery=nursery)
            expected = await PlayerUnderOneParent(memory, root).play(script)
            assert await PlayerUnderOneParent(oxia, root).play(script) == expected
            await oxia.close()

    with asyncio.Runner() as runner:

        @settings(max_examples=30)
        @given(script=scripts)
        def answers_are_equal(script: list[Action]) -> None:
            runner.run(play(script))

        answers_are_equal()
