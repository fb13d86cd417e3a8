"""Only brokers that are certainly gone count as gone, and each is asked for once (review C)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.records import GoneBrokers
from storage.errors import Unavailable
from storage.metadata import keys
from storage.metadata.memory import MemorySession
from storage.metadata.port import ABSENT, Applied, Delete, NotApplied, Put, Session, WriteOp, WriteOutcome
from tests.kit.stepping_clock import SteppingClock
from tests.unit.storage.catalog.deposed import DeposedMetadata


class Registry(NamedTuple):
    metadata: DeposedMetadata
    clock: SteppingClock
    session: Session
    brokers: GoneBrokers

    async def register(self, broker_id: int) -> int:
        """The epoch of that broker."""
        outcome = await self.metadata.write([Put(keys.broker(broker_id), b"{}", ABSENT)])
        assert isinstance(outcome, Applied)
        epoch = outcome.results[0].version
        assert epoch is not None
        return epoch

    async def end(self, broker_id: int) -> None:
        await self.metadata.write([Delete(keys.broker(broker_id))])

    async def ask(self, *epochs: int) -> None:
        self.brokers.note(epochs)
        await self.brokers.ask(self.session)

    async def sentinels(self) -> list[str]:
        start, end = keys.brokers_and_sentinels()
        return [path for path in await self.metadata.list(start, end) if not keys.is_broker(path)]


@contextlib.asynccontextmanager
async def registry(limits: CompactorLimits = DEFAULT_LIMITS) -> AsyncIterator[Registry]:
    metadata, clock = DeposedMetadata(), SteppingClock()
    session = await metadata.open_session(timeout_ms=10_000)
    try:
        yield Registry(metadata, clock, session, GoneBrokers(metadata, clock=clock, limits=limits))
    finally:
        await session.close()


async def test_who_was_read_before_the_question_and_is_not_registered_is_gone_for_ever() -> None:
    async with registry() as it:
        old, live = await it.register(1), await it.register(2)
        await it.end(1)
        await it.register(1)
        await it.ask(old, live)

        assert it.brokers.among([old, live, 77]) == {old}
        assert await it.sentinels() == []


async def test_who_registered_after_the_list_is_not_taken_for_gone_though_the_list_lacks_it() -> None:
    """Finding C: names that are read after the list say nothing by their absence from it."""
    async with registry() as it:
        old = await it.register(1)
        await it.end(1)
        await it.ask(old)
        late = await it.register(2)
        it.brokers.note([late])

        assert it.brokers.among([old, late]) == {old}
        await it.brokers.ask(it.session)
        assert it.brokers.among([old, late]) == {old}


async def test_what_is_noted_while_a_list_is_on_its_way_waits_for_the_next() -> None:
    async with registry() as it:
        old = await it.register(1)
        await it.end(1)
        listed = it.metadata.list
        late: list[int] = []

        async def slow_list(start: keys.Key, end: str) -> list[str]:
            found = await listed(start, end)
            if not late:
                late.append(await it.register(2))
                it.brokers.note(late)
            return found

        it.metadata.list = slow_list  # type: ignore[method-assign]
        await it.ask(old)

        assert it.brokers.among([old, *late]) == {old}
        assert it.brokers.has_questions
        await it.brokers.ask(it.session)
        assert it.brokers.among(late) == frozenset()
        assert not it.brokers.has_questions


async def test_a_list_of_a_deposed_leader_shows_nothing_and_the_question_stays() -> None:
    async with registry() as it:
        it.metadata.depose()
        live = await it.register(1)
        with pytest.raises(Unavailable, match="for certain"):
            await it.ask(live)
        assert it.brokers.among([live]) == frozenset()
        assert it.brokers.has_questions
        it.metadata.elect()
        await it.brokers.ask(it.session)

        assert it.brokers.among([live]) == frozenset()


async def test_a_sentinel_that_nobody_could_remove_says_nothing_for_the_next_question() -> None:
    """A deposed leader has that one, and not the broker that registered since."""
    async with registry() as it:
        write = it.metadata.write

        async def keep_sentinels(ops: Sequence[WriteOp]) -> WriteOutcome:
            return NotApplied("not now") if isinstance(ops[0], Delete) else await write(ops)

        it.metadata.write = keep_sentinels  # type: ignore[method-assign]
        await it.ask(77)
        assert len(await it.sentinels()) == 1
        it.metadata.depose()
        live = await it.register(1)
        with pytest.raises(Unavailable, match="for certain"):
            await it.ask(live)

        assert it.brokers.among([live]) == frozenset()


async def test_a_session_that_is_over_shows_nothing() -> None:
    async with registry() as it:
        session = await it.metadata.open_session(timeout_ms=10_000)
        assert isinstance(session, MemorySession)
        await session.close()
        it.brokers.note([5])
        with pytest.raises(Unavailable):
            await it.brokers.ask(session)

        assert it.brokers.among([5]) == frozenset()


@pytest.mark.parametrize(("call_timeout_s", "is_cancelled"), [(0.01, False), (60.0, True)], ids=["given up", "cancelled"])
async def test_a_store_that_does_not_answer_is_given_up_and_a_cancelled_question_stays(call_timeout_s: float, is_cancelled: bool) -> None:
    async with registry(CompactorLimits(call_timeout_s=call_timeout_s)) as it:
        asked = asyncio.Event()

        async def silent_list(_start: keys.Key, _end: str) -> list[str]:
            asked.set()
            await asyncio.Event().wait()
            return []

        it.metadata.list = silent_list  # type: ignore[method-assign]
        if is_cancelled:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(it.ask(5))
                await asked.wait()
                task.cancel()
        else:
            with pytest.raises(Unavailable, match="after_s"):
                await it.ask(5)

        assert it.brokers.among([5]) == frozenset()
        assert it.brokers.has_questions


async def test_who_is_gone_is_not_asked_for_again_and_who_is_live_only_after_a_while() -> None:
    async with registry() as it:
        old, live = await it.register(1), await it.register(2)
        await it.end(1)
        await it.ask(old, live)
        it.brokers.note([old, live])
        soon = it.brokers.has_questions
        it.clock.advance(DEFAULT_LIMITS.broker_alive_for_s + 1)
        it.brokers.note([old, live])

        assert not soon
        assert it.brokers.has_questions
        await it.end(2)
        await it.brokers.ask(it.session)
        assert it.brokers.among([old, live]) == {old, live}


async def test_whom_a_list_has_is_not_asked_for_though_other_records_name_them() -> None:
    """Otherwise records that name different brokers, all of them live, cost a question in each cycle for ever."""
    async with registry() as it:
        one, other = await it.register(1), await it.register(2)
        await it.ask(one)
        it.brokers.note([other])

        assert not it.brokers.has_questions


async def test_epochs_that_are_noted_or_known_to_be_gone_are_bounded() -> None:
    async with registry(CompactorLimits(noted_brokers_max=3, gone_brokers_kept_max=2)) as it:
        await it.ask(*range(100, 110))

        assert it.brokers.among(range(100, 110)) == {101, 102}
