"""The memory store and the SQLite store are given the same scripts and must answer the same."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Applied, Delete, DeleteRange, Key, MetadataStore, Put, Session, Status, WriteOp
from storage.metadata.sqlite.store import SqliteMetadataStore

NAMES = ("a", "b", "d", "d/1", "d/2", "d/3", "d-/1", "d/1/x", "d/2/x", "e/1")
RANGES = (("d/", "d/~"), ("d/2", "d/3"), ("d/2", "d/2"), ("a", "c"), ("d/1/", "d/1/~"), ("a/", "z/"))
SESSIONS = 2


@dataclass(frozen=True)
class AtVersion:
    """As a condition: the version that the n-th last successful put of the key got."""

    n: int


@dataclass(frozen=True)
class PutStep:
    name: str
    value: bytes
    condition: int | AtVersion | None
    session: int | None


@dataclass(frozen=True)
class DeleteStep:
    name: str
    condition: int | AtVersion | None


@dataclass(frozen=True)
class DeleteRangeStep:
    start: str
    end: str


@dataclass(frozen=True)
class Request:
    steps: tuple[PutStep | DeleteStep | DeleteRangeStep, ...]


@dataclass(frozen=True)
class OpenSession:
    slot: int


@dataclass(frozen=True)
class CloseSession:
    slot: int


Action = Request | OpenSession | CloseSession

names = st.sampled_from(NAMES)
conditions = st.sampled_from([None, ABSENT, AtVersion(0), AtVersion(0), AtVersion(1)])
puts = st.builds(PutStep, names, st.binary(max_size=3), conditions, st.one_of(st.none(), st.integers(min_value=0, max_value=SESSIONS - 1)))
deletes = st.builds(DeleteStep, names, conditions)
range_deletes = st.sampled_from(RANGES).map(lambda bounds: DeleteRangeStep(*bounds))
requests = st.lists(st.one_of(puts, puts, deletes, range_deletes), min_size=1, max_size=6).map(lambda steps: Request(tuple(steps)))
slots = st.integers(min_value=0, max_value=SESSIONS - 1)
scripts = st.lists(st.one_of(requests, requests, requests, st.builds(OpenSession, slots), st.builds(CloseSession, slots)), max_size=15)


@dataclass
class Player:
    """Plays a script on one store and writes down what can be seen of it, with versions named by the put that got them."""

    store: MetadataStore
    root: str
    versions: dict[str, list[int]] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    opened: list[Session] = field(default_factory=list)

    async def play(self, script: Sequence[Action]) -> list[object]:
        seen: list[object] = []
        for action in script:
            match action:
                case OpenSession(slot):
                    self.sessions[slot] = await self.store.open_session(timeout_ms=60_000)
                    self.opened.append(self.sessions[slot])
                case CloseSession(slot):
                    if slot in self.sessions:
                        await self.sessions[slot].close()
                case Request(steps):
                    seen.append(await self._request(steps))
            seen.append(await self._contents())
        for session in self.opened:
            await session.close()
        return [*seen, await self._contents()]

    async def _request(self, steps: Sequence[PutStep | DeleteStep | DeleteRangeStep]) -> list[Status]:
        outcome = await self.store.write([self._op(step) for step in steps])
        assert isinstance(outcome, Applied)
        for step, result in zip(steps, outcome.results, strict=True):
            assert (result.version is not None) == (isinstance(step, PutStep) and result.status is Status.OK)
            if isinstance(step, PutStep) and result.version is not None:
                self.versions.setdefault(step.name, []).append(result.version)
        return [result.status for result in outcome.results]

    def _op(self, step: PutStep | DeleteStep | DeleteRangeStep) -> WriteOp:
        match step:
            case PutStep(name, value, condition, slot):
                # A slot that was never opened: a session that does not exist.
                session = None if slot is None else self.sessions[slot].session_id if slot in self.sessions else 2**40
                return Put(self._key(name), value, self._version(name, condition), session)
            case DeleteStep(name, condition):
                return Delete(self._key(name), self._version(name, condition))
            case DeleteRangeStep(start, end):
                return DeleteRange(self._key(start), f"{self.root}/{end}")

    async def _contents(self) -> list[object]:
        seen: list[object] = []
        for record in await self.store.get_many([self._key(name) for name in NAMES]):
            if record is not None:
                name = record.path.removeprefix(f"{self.root}/")
                seen.append((name, record.value, self.versions[name].index(record.version)))
        for start, end in RANGES:
            paths = await self.store.list(self._key(start), f"{self.root}/{end}")
            scanned = [record.path async for record in self.store.range_scan(self._key(start), f"{self.root}/{end}")]
            assert paths == scanned
            seen.append([path.removeprefix(self.root) for path in paths])
        for name in NAMES:
            for within in ("", "d/", "d/1", name):
                ceiling = await self.store.get_ceiling(self._key(name), within=f"{self.root}/{within}")
                seen.append(ceiling and ceiling.path.removeprefix(self.root))
        return seen

    def _key(self, name: str) -> Key:
        return Key(f"{self.root}/{name}", self.root)

    def _version(self, name: str, condition: int | AtVersion | None) -> int | None:
        if not isinstance(condition, AtVersion):
            return condition
        versions = self.versions.get(name, [])
        return versions[-1 - condition.n] if condition.n < len(versions) else 2**40


def test_memory_and_sqlite_answer_alike(tmp_path: Path) -> None:
    clock = SystemClock()
    ids = IdSource(clock=clock)
    memory = MemoryMetadataStore(clock=clock, shards=1)
    with asyncio.Runner() as runner:
        sqlite = runner.run(SqliteMetadataStore.open(tmp_path / "meta.db", blocking=InlineBlocking(), clock=clock, ids=ids))

        @settings(max_examples=150)
        @given(script=scripts)
        def answers_are_equal(script: list[Action]) -> None:
            root = f"script-{ids.next_ulid()}"

            expected = runner.run(Player(memory, root).play(script))
            assert runner.run(Player(sqlite, root).play(script)) == expected

        answers_are_equal()
        runner.run(sqlite.close())
        runner.run(memory.close())
