"""A group in the memory of its coordinator: one thing at a time happens to it, and what must be durable is, before anybody hears of it.

Requests and the passing of time are jobs in a line. A timer is set for what is due next, and none where nothing is: a group without members
costs nothing. A job that writes nothing is done at once; the others wait while a write is under way.
Commits that wait together travel together. If a write fails, the group is closed: everybody is told to ask again, and it is loaded anew.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

import structlog

from broker.groups.committed import Committed
from broker.groups.errors import GroupError
from broker.groups.events import Effect, Event, Heartbeat, Reply, Save, Tick
from broker.groups.members import Group, GroupState
from broker.groups.memory import GROUP_BYTES, GroupMemory, growth_bytes, member_bytes
from broker.groups.metrics import GroupMetrics
from broker.groups.offsets import OFFSETS_MAX, StoredGroup
from broker.groups.retention import Names, Verdict, judge
from broker.groups.settings import GroupSettings
from broker.groups.state import step, touched
from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import Fenced, StorageError
from storage.limits import WRITE_REQUEST_OPS_MAX
from storage.vocabulary import PartitionId

JOBS_MAX: Final = 10_000
COMMITS_TOGETHER_MAX: Final = 64
EXPIRED_TOGETHER_MAX: Final = WRITE_REQUEST_OPS_MAX - 1
TIMER_S_MIN: Final = 0.01
"""Between two looks at the clock: a loop's timer may be early by a millisecond."""

log = structlog.get_logger("groups")


class Closed(Exception):
    """The group is not this broker's any more, or has to be loaded again: `error` is what the client is told."""

    def __init__(self, error: GroupError) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[PartitionId, Committed]


@dataclass(frozen=True, slots=True)
class Check:
    """That the group is still this broker's, as of a read made for it: what memory says next is no older than the question."""


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget what is to be forgotten by now, at most `EXPIRED_TOGETHER_MAX` offsets, and the group itself if nothing is left of it."""

    names: Names


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    pass


Job = Event | Commit | Check | DeleteOffsets | DeleteGroup | Expire
A = TypeVar("A")


class LoadedGroup:
    def __init__(
        self,
        stored: StoredGroup,
        group: Group,
        *,
        clock: Clock,
        nursery: Nursery,
        settings: GroupSettings,
        metrics: GroupMetrics,
        memory: GroupMemory,
        on_close: Callable[["LoadedGroup"], None],
    ) -> None:
        """`on_close` is called once, when the group is closed for whatever reason."""
        self._stored = stored
        self._group = group
        self._clock = clock
        self._nursery = nursery
        self._settings = settings
        self._metrics = metrics
        self._memory = memory
        self.members_bytes = growth_bytes(Group(group_id=group.group_id), group)
        """What its members hold, and the ids that were given out."""
        self._counted_bytes = 0
        self._coming_bytes = 0
        """What the offsets that are being written will hold."""
        self._jobs: deque[tuple[Job, asyncio.Future[Any]]] = deque()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_token = 0
        self._is_writing = False
        self._is_judging = False
        self._written_for: list[asyncio.Future[Any]] = []
        self._closed_with: GroupError | None = None
        self._on_close = on_close
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._may_be_due_earlier = True
        """Than the timer says: since it was set, more has happened than signs of life."""
        self._set_timer()
        self._count()

    @property
    def group(self) -> Group:
        """As it was made durable last, with the heartbeats since."""
        return self._group

    @property
    def stored(self) -> StoredGroup:
        return self._stored

    @property
    def is_open(self) -> bool:
        return self._closed_with is None

    @property
    def is_idle(self) -> bool:
        """Nothing is lost when it is closed: no members and nobody who waits."""
        return self.is_unused and not self._group.pending

    @property
    def is_unused(self) -> bool:
        """Nobody is in it, but member ids were given out perhaps: who comes with one after it was closed is given another."""
        return self._group.state is GroupState.EMPTY and not (self._jobs or self._waiting or self._is_writing or self._is_judging)

    def is_silent(self, since_s: float) -> bool:
        """Nobody waits, and no member has given a sign of life since then. Loaded again, it is as it was, and so are their timeouts."""
        if self._jobs or self._waiting or self._is_writing or self._is_judging:
            return False
        return all(member.expires_s - member.session_timeout_s < since_s for member in self._group.members.values())

    @property
    def exists(self) -> bool:
        """Whether there is such a group: a record of it, or somebody who joins."""
        return self._stored.is_written or self._group.state is not GroupState.EMPTY or bool(self._group.pending)

    async def ask(self, make: Callable[[int], Event], answer: type[A], *, deadline_s: float) -> A:
        """The answer to the event that `make` makes of a token. Raises `Closed`, and `TimeoutError` after `deadline_s`.

        Cancelled: it has happened, or will, and nobody hears of it.
        """
        self._last_token += 1
        token = self._last_token
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            self._add(make(token), future)
            async with asyncio.timeout(deadline_s):
                found = await future
        finally:
            self._waiting.pop(token, None)
        assert isinstance(found, answer)
        return found

    def verdict(self, names: Names) -> Verdict:
        """What `Expire` would forget."""
        return judge(
            self._group, self._stored.offsets, names, now_ms=self._clock.now_ms(), retention_ms=self._settings.offsets_retention_ms
        )

    async def do(self, job: Commit | Check | DeleteOffsets | DeleteGroup | Expire, *, deadline_s: float) -> GroupError:
        """Durable when it returns NONE. As `ask`."""
        future: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()
        self._add(job, future)
        async with asyncio.timeout(deadline_s):
            return await future

    def member_bytes(self, member_id: str, instance_id: str | None) -> int:
        """What that member holds, or the static one in whose place it comes; 0 if there is none."""
        member = self._group.members.get(member_id)
        if member is None and instance_id is not None:
            member = self._group.static_member(instance_id)
        return 0 if member is None else member_bytes(member)

    def close(self, error: GroupError) -> None:
        """Answer everybody with `error`, and everybody who asks later."""
        if self._closed_with is not None:
            return
        self._closed_with = error
        self._count()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stored.give_up()
        # A write under way may still be applied, as after any of these errors; its clients do not wait for a store that is silent.
        futures = [*self._waiting.values(), *self._written_for, *(future for _, future in self._jobs)]
        self._jobs.clear()
        self._waiting.clear()
        for future in futures:
            _fail(future, error)
        self._on_close(self)

    def _count(self) -> None:
        """What it holds now, in the memory of all groups."""
        held_bytes = GROUP_BYTES + self.members_bytes + self._stored.held_bytes + self._coming_bytes if self._closed_with is None else 0
        self._memory.held_bytes += held_bytes - self._counted_bytes
        self._counted_bytes = held_bytes

    def _add(self, job: Job, future: asyncio.Future[Any]) -> None:
        if self._closed_with is not None:
            raise Closed(self._closed_with)
        if len(self._jobs) >= JOBS_MAX:
            raise Closed(GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        self._jobs.append((job, future))
        self._advance()

    def _advance(self) -> None:
        while self._jobs and not self._is_writing and self._closed_with is None:
            job, future = self._jobs.popleft()
            match job:
                case Commit():
                    self._start_commit(job, future)
                case DeleteOffsets():
                    held = [partition for partition in job.partitions if self._stored.offset(partition) is not None]
                    self._write([future], lambda: None, partial(self._stored.delete_offsets, self._group, held))
                case Check():
                    self._write([future], lambda: None, self._stored.check)
                case DeleteGroup():
                    self._start_delete(future)
                case Expire():
                    self._start_expiry(job, future)
                case _:
                    self._step(job)
        if not self._is_writing and self._closed_with is None:
            self._set_timer()

    def _set_timer(self) -> None:
        """For what is due next. Not while a write is under way: what came meanwhile counts before the time that has passed."""
        if self._timer is not None and not self._may_be_due_earlier:
            return
        self._may_be_due_earlier = False
        due_s = self._group.next_due_s
        if due_s is None or (self._timer is not None and self._timer_due_s <= due_s):
            # One that is too early looks again: signs of life, which are most of what happens, put all of it off.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = due_s
        delay_s = max(due_s - self._clock.monotonic_s(), TIMER_S_MIN)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._is_writing or self._closed_with is not None:
            return  # set again when the write is over
        due_s = self._group.next_due_s
        if due_s is not None and due_s <= self._clock.monotonic_s():
            self._add(Tick(), asyncio.get_running_loop().create_future())
        else:
            self._set_timer()

    def _step(self, event: Event) -> None:
        before = self._group
        group, effects = step(before, event, self._clock.monotonic_s(), self._settings)
        if group.state is not GroupState.EMPTY:
            group = replace(group, empty_since_ms=None)
        elif before.state is not GroupState.EMPTY:
            group = replace(group, empty_since_ms=self._clock.now_ms())
        if not isinstance(event, Heartbeat):
            self.members_bytes += growth_bytes(before, group)
            self._count()
        if Save() not in effects:
            self._metrics.note_step(before, event, group)
            may_be_due_earlier = self._may_be_due_earlier
            self._publish(group, effects)
            if isinstance(event, Heartbeat):
                self._may_be_due_earlier = may_be_due_earlier
            return

        def finish() -> None:
            self._metrics.note_step(before, event, group)
            self._publish(group, effects)
            log.info("group", group=group.group_id, state=group.state.value, generation=group.generation, members=len(group.members))

        self._write([], finish, partial(self._stored.save, group))

    def _publish(self, group: Group, effects: tuple[Effect, ...]) -> None:
        self._group = group
        self._may_be_due_earlier = True
        for effect in effects:
            if isinstance(effect, Reply):
                future = self._waiting.get(effect.token)
                if future is not None and not future.done():
                    future.set_result(effect.answer)

    def _start_commit(self, commit: Commit, future: asyncio.Future[Any]) -> None:
        if self._is_to_nobody(commit):
            self._refuse(future)
            return
        together = [(commit, future)]
        while (
            self._jobs
            and isinstance(following := self._jobs[0][0], Commit)
            and not self._is_to_nobody(following)
            and len(together) < COMMITS_TOGETHER_MAX
        ):
            together.append(cast("tuple[Commit, asyncio.Future[Any]]", self._jobs.popleft()))
        offsets: dict[PartitionId, Committed] = {}
        accepted = []
        for one, its_future in together:
            error = self._group.check_commit(one.member_id, one.instance_id, one.generation)
            if not error and not self._stored.has_room(one.offsets, beside=offsets):
                log.warning("group_has_too_many_offsets", group=self._group.group_id, offsets_max=OFFSETS_MAX)
                error = GroupError.INVALID_COMMIT_OFFSET_SIZE
            if not error and not self._has_memory(one):
                self._memory.note_refusal("memory")
                error = GroupError.COORDINATOR_LOAD_IN_PROGRESS
            if error:
                _answer(its_future, error)
            else:
                self._group = touched(self._group, one.member_id, self._clock.monotonic_s())
                offsets |= one.offsets
                accepted.append(its_future)
                self._coming_bytes += max(self._stored.growth_bytes(one.offsets), 0)
                self._count()
        if not accepted:
            return
        self._write(accepted, lambda: None, partial(self._stored.commit, self._group, offsets))

    def _has_memory(self, commit: Commit) -> bool:
        self._is_judging = True  # or it might make room of itself
        try:
            return self._memory.has_room(self._stored.growth_bytes(commit.offsets))
        finally:
            self._is_judging = False

    def _is_to_nobody(self, commit: Commit) -> bool:
        return commit.generation >= 0 and not self.exists

    def _refuse(self, future: asyncio.Future[Any]) -> None:
        """Clients give up for this, so memory alone does not say it: another coordinator may have made the group."""

        async def check() -> None:
            await self._stored.check()
            _answer(future, GroupError.GROUP_ID_NOT_FOUND)

        self._write([future], lambda: None, check)

    def _start_expiry(self, job: Expire, future: asyncio.Future[Any]) -> None:
        found = self.verdict(job.names)
        gone = [*found.orphaned, *found.expired][:EXPIRED_TOGETHER_MAX]
        is_over = found.is_over and self._stored.is_written and len(gone) == len(found.orphaned) + len(found.expired)
        if not gone and not is_over:
            _answer(future, GroupError.NONE)
            return

        def finish() -> None:
            orphaned = min(len(gone), len(found.orphaned))
            self._metrics.note_expired(expired=len(gone) - orphaned, orphaned=orphaned, is_over=is_over)
            log.info("group_expired", group=self._group.group_id, offsets=len(gone), is_removed=is_over)
            if is_over:
                self.close(GroupError.COORDINATOR_LOAD_IN_PROGRESS)

        write = partial(self._stored.delete, self._group) if is_over else partial(self._stored.delete_offsets, self._group, gone)
        self._write([future], finish, write)

    def _start_delete(self, future: asyncio.Future[Any]) -> None:
        if self._group.state is not GroupState.EMPTY:
            _answer(future, GroupError.NON_EMPTY_GROUP)
        elif not self._stored.is_written:
            _answer(future, GroupError.GROUP_ID_NOT_FOUND)
        else:
            # What comes next begins a new group.
            self._write([future], lambda: self.close(GroupError.COORDINATOR_LOAD_IN_PROGRESS), partial(self._stored.delete, self._group))

    def _write(
        self, futures: list[asyncio.Future[Any]], finish: Callable[[], None], write: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Carry `write` out, then `finish`, and answer `futures` with what became of it."""
        self._is_writing = True
        self._written_for = futures

        async def run() -> None:
            error = GroupError.COORDINATOR_NOT_AVAILABLE
            try:
                await write()
            except Fenced:
                error = GroupError.NOT_COORDINATOR
            except StorageError as failure:
                log.warning("group_not_written", group=self._group.group_id, cause=str(failure))
            else:
                error = GroupError.NONE
            finally:
                self._is_writing = False
                self._coming_bytes = 0
                self._count()
            if error or self._closed_with is not None:
                for future in futures:
                    _fail(future, error or GroupError.NOT_COORDINATOR)
                self.close(error)
                return
            for future in futures:
                _answer(future, GroupError.NONE)
            finish()
            self._advance()

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # before its first step perhaps: the broker ends, and nobody else answers
                self._is_writing = False
                for future in futures:
                    _fail(future, GroupError.COORDINATOR_NOT_AVAILABLE)
                self.close(GroupError.COORDINATOR_NOT_AVAILABLE)

        self._nursery.spawn(run(), name="group-write").add_done_callback(ended)


def _answer(future: asyncio.Future[Any], error: GroupError) -> None:
    if not future.done():
        future.set_result(error)


def _fail(future: asyncio.Future[Any], error: GroupError) -> None:
    if not future.done():
        future.set_exception(Closed(error))
        future.exception()
