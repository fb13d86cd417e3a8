"""A record that one broker owns: order, writes, and that everybody who asks is answered once, whatever happens."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from broker.groups.group import NOBODY, FencedState, PersistThenReply, Refusals
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.errors import Fenced, OutcomeUnknown, StorageError

TIMEOUT_S = 25.0


class Closed(Exception):
    pass


REFUSALS: Refusals[str] = Refusals(line_full="full", fenced="fenced", not_written="not written", closed=Closed)


@dataclass(frozen=True)
class Say:
    """Is answered at once, with what was written before it."""


@dataclass(frozen=True)
class Put:
    """Is answered when `value` is durable. Those that wait together are written together."""

    value: str


@dataclass(frozen=True)
class Later:
    """Is answered by the next `Release`."""


@dataclass(frozen=True)
class Release:
    pass


@dataclass(frozen=True)
class Due:
    pass


@dataclass(frozen=True)
class End:
    """Is written, and closes the record."""


Job = Say | Put | Later | Release | Due | End


@dataclass
class Store:
    """Where the record is durable. A write waits until it is let go on, unless `is_quick`."""

    is_quick: bool = False
    values: list[str] = field(default_factory=list)
    under_way: int = 0
    failure: BaseException | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, *values: str) -> None:
        assert not self.under_way, "one at a time"
        self.under_way += 1
        try:
            if not self.is_quick:
                await self.gate.wait()
                self.gate.clear()
            if self.failure is not None:
                raise self.failure
            self.values.append("+".join(values))
        finally:
            self.under_way -= 1


class Owner:
    """What a machine on an owned record looks like: it decides, and keeps the state."""

    def __init__(self, store: Store, clients: asyncio.TaskGroup, nursery: Nursery, *, jobs_max: int = 100) -> None:
        self.store = store
        self.clients = clients
        self.clock = SystemClock()
        self.due_s: float | None = None
        self.happened: list[Job] = []
        self.failures: list[StorageError] = []
        self.closed = 0
        self.told: list[str] = []
        """Values whose `then` was called."""
        self._later: list[int] = []
        self.record: FencedState[Job, str] = FencedState(
            self._start,
            refusals=REFUSALS,
            jobs_max=jobs_max,
            next_due_s=lambda: self.due_s,
            due=Due(),
            on_not_written=self.failures.append,
            on_close=self._note_closed,
            clock=self.clock,
            nursery=nursery,
            name="owned-write",
        )

    async def ask(self, job: Job, *, deadline_s: float = TIMEOUT_S) -> object:
        """What it was answered, or why not."""
        try:
            return await self.record.ask(lambda _token: job, deadline_s=deadline_s)
        except Closed as closed:
            return f"closed: {closed}"
        except TimeoutError:
            return "too late"

    def _start(self, job: Job, token: int) -> PersistThenReply | None:
        assert not self.record.is_at_rest, "something happens to it"
        self.happened.append(job)
        match job:
            case Say():
                self.record.answer(token, list(self.store.values))
            case Later():
                self._later.append(token)
            case Release():
                for waiting in [*self._later, token]:
                    self.record.answer(waiting, "released")
            case Due():
                assert token == NOBODY
                self.due_s = None
            case End():
                return PersistThenReply(lambda: self.store.write("end"), lambda: self._end(token))
            case Put():
                return self._put(job, token)
        return None

    def _put(self, first: Put, token: int) -> PersistThenReply:
        together = [(first, token)]
        while (following := self.record.take_next(lambda job: job if isinstance(job, Put) else None)) is not None:
            together.append(following)

        def then() -> None:
            for put, its_token in together:
                self.told.append(put.value)
                self.record.answer(its_token, put.value)

        return PersistThenReply(lambda: self.store.write(*(put.value for put, _ in together)), then)

    def _end(self, token: int) -> None:
        self.record.answer(token, "ended")
        self.record.close("gone")

    def _note_closed(self) -> None:
        assert not self.record.is_open
        self.closed += 1


@contextlib.asynccontextmanager
async def owned(*, jobs_max: int = 100, is_quick: bool = False) -> AsyncIterator[Owner]:
    """Whoever asks may go on asking when the nursery is left."""
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as clients, Nursery() as nursery:
        yield Owner(Store(is_quick=is_quick), clients, nursery, jobs_max=jobs_max)


async def asking(owner: Owner, *jobs: Job) -> list[asyncio.Task[object]]:
    """Each of them asked, as far as it gets."""
    tasks = [owner.clients.create_task(owner.ask(job)) for job in jobs]
    await settled()
    return tasks


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def write_on(owner: Owner) -> None:
    owner.store.gate.set()
    await settled()


async def test_a_job_that_writes_nothing_is_answered_before_the_caller_gives_up_its_turn() -> None:
    async with owned() as owner:
        async with asyncio.timeout(0):
            answer = await owner.ask(Say())

    assert answer == []


async def test_who_asks_for_a_write_hears_of_it_when_it_is_durable_and_those_behind_it_happen_then() -> None:
    async with owned() as owner:
        put, said = await asking(owner, Put("a"), Say())

        assert (put.done(), said.done(), owner.happened) == (False, False, [Put("a")])
        await write_on(owner)
        assert (await put, await said) == ("a", ["a"])
        assert owner.record.is_at_rest


async def test_writes_are_one_at_a_time_in_the_order_in_which_they_were_asked_for() -> None:
    async with owned() as owner:
        asked = await asking(owner, Put("a"), Say(), Put("b"), Say(), Put("c"))
        for _ in range(3):
            await write_on(owner)

        assert await asyncio.gather(*asked) == ["a", ["a"], "b", ["a", "b"], "c"]
        assert owner.store.values == ["a", "b", "c"]


async def test_jobs_that_fit_are_taken_out_of_the_line_up_to_the_first_that_does_not() -> None:
    async with owned() as owner:
        asked = await asking(owner, Put("a"), Put("b"), Put("c"), Say(), Put("d"))
        for _ in range(3):
            await write_on(owner)

        assert owner.store.values == ["a", "b+c", "d"]
        assert await asyncio.gather(*asked) == ["a", "b", "c", ["a", "b+c"], "d"]


async def test_a_job_may_be_answered_by_a_later_one_and_until_then_somebody_waits() -> None:
    async with owned() as owner:
        (later,) = await asking(owner, Later())

        assert (later.done(), owner.record.is_at_rest) == (False, False)
        assert await owner.ask(Release()) == "released"
        assert await later == "released"
        assert owner.record.is_at_rest


async def test_the_token_of_a_question_is_given_to_the_job_that_is_made_of_it_and_is_nobody_else_s() -> None:
    tokens: list[int] = []

    def make(token: int) -> Job:
        tokens.append(token)
        return Say()

    async with owned() as owner:
        for _ in range(3):
            await owner.record.ask(make, deadline_s=TIMEOUT_S)

    assert len({*tokens, NOBODY}) == 4


async def test_a_question_is_answered_once_and_what_comes_after_is_not_heard() -> None:
    async with owned() as owner:
        (later,) = await asking(owner, Later())
        owner.record.answer(1, "first")
        owner.record.answer(1, "second")
        owner.record.close("gone")

        assert await later == "first"


async def test_a_job_more_than_the_line_holds_is_refused_and_those_in_it_are_not_disturbed() -> None:
    async with owned(jobs_max=2) as owner:
        written, *waiting = await asking(owner, Put("a"), Say(), Say())

        assert await owner.ask(Say()) == "closed: full"
        assert owner.record.is_open
        await write_on(owner)
        assert await asyncio.gather(written, *waiting) == ["a", ["a"], ["a"]]
        assert await owner.ask(Say()) == ["a"], "there is room again"


async def test_one_that_is_closed_while_it_writes_answers_everybody_at_once_and_says_nothing_of_the_write() -> None:
    async with owned() as owner:
        asked = await asking(owner, Later(), Put("a"), Say())
        owner.record.close("gone")

        assert await asyncio.gather(*asked) == ["closed: gone"] * 3
        assert await owner.ask(Say()) == "closed: gone"
        await write_on(owner)
        assert (owner.store.values, owner.told, owner.closed, owner.happened) == (["a"], [], 1, [Later(), Put("a")])
        assert owner.record.is_at_rest


async def test_a_job_that_closes_the_record_is_answered_itself_and_those_behind_it_are_not_done() -> None:
    async with owned() as owner:
        asked = await asking(owner, End(), Say(), Put("a"))
        await write_on(owner)

        assert await asyncio.gather(*asked) == ["ended", "closed: gone", "closed: gone"]
        assert (owner.happened, owner.closed) == ([End()], 1)


@pytest.mark.parametrize(
    ("failure", "said", "reported"),
    [(Fenced("another"), "fenced", 0), (OutcomeUnknown("who knows"), "not written", 1)],
    ids=["fenced", "unknown"],
)
async def test_a_write_that_fails_closes_the_record_and_answers_everybody(failure: StorageError, said: str, reported: int) -> None:
    async with owned() as owner:
        owner.store.failure = failure
        asked = await asking(owner, Later(), Put("a"), Say(), Put("b"))
        await write_on(owner)

        assert await asyncio.gather(*asked) == [f"closed: {said}"] * 4
        assert await owner.ask(Say()) == f"closed: {said}"
        assert owner.failures == [failure][:reported]
        assert (owner.closed, owner.store.values, owner.record.is_at_rest) == (1, [], True)


async def test_a_write_that_fails_after_the_record_was_closed_changes_no_answer_and_is_reported() -> None:
    async with owned() as owner:
        owner.store.failure = OutcomeUnknown("who knows")
        (put,) = await asking(owner, Put("a"))
        owner.record.close("gone")
        await write_on(owner)

        assert (await put, await owner.ask(Say())) == ("closed: gone", "closed: gone")
        assert (owner.failures, owner.closed) == ([owner.store.failure], 1)


@pytest.mark.parametrize("has_begun", [False, True], ids=["before its first step", "under way"])
async def test_when_the_broker_ends_during_a_write_everybody_is_answered(has_begun: bool) -> None:
    async with owned() as owner:
        asked = [owner.clients.create_task(owner.ask(job)) for job in (Later(), Put("a"), Say())]
        await asyncio.sleep(0)  # they are asked, and the task that writes has not run
        if has_begun:
            await settled()
        assert owner.store.under_way == has_begun

    assert [one.result() for one in asked] == ["closed: not written"] * 3
    assert (owner.closed, owner.record.is_at_rest, owner.store.values) == (1, True, [])


async def test_a_mistake_of_ours_takes_the_nursery_down_and_answers_everybody() -> None:
    async def fail(clients: asyncio.TaskGroup) -> None:
        async with Nursery() as nursery:
            owner = Owner(Store(), clients, nursery)
            owner.store.failure = ValueError("a mistake")
            asked.extend(await asking(owner, Later(), Put("a"), Say()))
            owner.store.gate.set()
            await asyncio.Event().wait()

    asked: list[asyncio.Task[object]] = []
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as clients:
        with pytest.raises(ExceptionGroup) as raised:
            await fail(clients)

    assert raised.group_contains(ValueError, match="a mistake")
    assert [one.result() for one in asked] == ["closed: not written"] * 3


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_who_waits_no_longer_takes_nothing_back_and_holds_up_nobody(how: str) -> None:
    async with owned() as owner:
        (written,) = await asking(owner, Put("a"))
        leaving = owner.clients.create_task(owner.ask(Put("b"), deadline_s=0.0 if how == "late" else TIMEOUT_S))
        await settled()
        if how == "cancelled":
            leaving.cancel()
        left = (await asyncio.gather(leaving, return_exceptions=True))[0]
        assert left == "too late" if how == "late" else isinstance(left, asyncio.CancelledError)
        (behind,) = await asking(owner, Say())
        await write_on(owner)
        await write_on(owner)

        assert (await written, await behind) == ("a", ["a", "b"])
        assert owner.record.is_at_rest


async def test_one_whose_askers_left_before_they_were_answered_is_at_rest() -> None:
    async with owned() as owner:
        assert await owner.ask(Later(), deadline_s=0.0) == "too late"

        assert owner.record.is_at_rest
        assert await owner.ask(Release()) == "released"


@pytest.mark.parametrize(
    "what", ["answered, then cancelled", "cancelled, then answered", "closed, then cancelled", "cancelled, then closed"]
)
async def test_who_leaves_in_the_same_turn_as_the_answer_comes_leaves_no_trace(what: str) -> None:
    noticed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: noticed.append(context))
    async with owned() as owner:
        (later,) = await asking(owner, Later())
        for step in what.split(", then "):
            match step:
                case "answered":
                    owner.record.answer(1, "answer")
                case "closed":
                    owner.record.close("gone")
                case _:
                    later.cancel()
        with pytest.raises(asyncio.CancelledError):
            await later
        assert owner.record.is_at_rest
        del later
        gc.collect()  # an exception that nobody fetched is reported when it is collected

    assert noticed == []


async def test_what_is_due_happens_on_time_without_anybody_asking_and_once() -> None:
    async with owned() as owner:
        owner.due_s = owner.clock.monotonic_s()
        await owner.ask(Say())
        while Due() not in owner.happened:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        assert owner.happened == [Say(), Due()]
        assert not owner.record.timer.is_set


async def test_what_is_due_during_a_write_happens_behind_what_came_before_it_was_over() -> None:
    async with owned() as owner:
        owner.due_s = owner.clock.monotonic_s()
        owner.record.timer.note_change()
        owner.record.timer.set()
        (put,) = await asking(owner, Put("a"))
        while owner.record.timer.is_set:  # noqa: ASYNC110 - it goes off, and is not set as long as the write goes on
            await asyncio.sleep(0.001)
        (said,) = await asking(owner, Say())
        await write_on(owner)
        await asyncio.gather(put, said)
        while Due() not in owner.happened:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        assert owner.happened == [Put("a"), Say(), Due()]


async def test_one_that_is_closed_has_no_timer() -> None:
    async with owned() as owner:
        owner.due_s = owner.clock.monotonic_s() + 3_600
        await owner.ask(Say())
        assert owner.record.timer.is_set
        owner.record.close("gone")
        owner.record.close("twice")

        assert not owner.record.timer.is_set
        assert (owner.closed, await owner.ask(Say())) == (1, "closed: gone")


async def test_each_of_many_questions_in_any_order_is_answered_once_until_a_write_fails_and_all_others_then() -> None:
    made: list[Callable[[int], Job]] = [lambda _: Say(), lambda n: Put(str(n)), lambda _: Later(), lambda _: Release()]
    async with owned(is_quick=True) as owner:
        asked = [owner.clients.create_task(owner.ask(made[number * 7 % 4](number))) for number in range(100)]
        await settled()
        owner.store.failure = Fenced("another")
        asked += [owner.clients.create_task(owner.ask(made[number % 4](number))) for number in range(100)]
        answers = await asyncio.gather(*asked)

    assert answers.count("closed: fenced") >= 100 - 2
    assert (owner.closed, owner.record.is_at_rest, owner.store.under_way) == (1, True, 0)
