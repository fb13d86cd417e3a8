"""A group in the memory of its coordinator: what its jobs do to it, and what they write before anybody hears of it.

`FencedState` lets one job at a time happen to a record that one broker owns, and answers when what it did is durable. `LoadedGroup` says
what the jobs of a group do. Commits that wait together travel together. A group without members has no timer and costs nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog

from broker.groups.memory import GROUP_BYTES, GroupMemory, growth_bytes, member_bytes
from broker.groups.offset_expiration import Forgettable, Names, find_forgettable
from broker.groups.state import (
    Committed,
    Effect,
    Event,
    Group,
    GroupError,
    GroupSettings,
    GroupState,
    Heartbeat,
    Join,
    Leave,
    Reply,
    Save,
    Tick,
    step,
    touch,
)
from broker.groups.store import StoredGroup
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import FEW_SECONDS_BUCKETS, Metric, Telemetry
from storage.errors import Fenced, StorageError
from storage.limits import WRITE_REQUEST_OPS_MAX
from storage.vocabulary import PartitionId

GROUPS: Final = Metric("forebay_groups", "Groups that this broker has loaded, by state", ("state",), aggregation="sum")
MEMBERS: Final = Metric("forebay_group_members", "Members of the groups that this broker has loaded", aggregation="sum")
SLOTS: Final = Metric("forebay_coordinator_slots", "Coordinator slots that this broker holds, of 64", aggregation="sum")
REBALANCES: Final = Metric(
    "forebay_group_rebalances_total",
    "Rebalances that began, by cause: a member joined (or joined again with other wishes), left, or timed out",
    ("cause",),
)
COMMITS: Final = Metric(
    "forebay_group_commits_total", "Commits of offsets that the coordinator decided about, by Kafka's name of the answer", ("error",)
)
COMMIT_SECONDS: Final = Metric(
    "forebay_group_commit_duration_seconds", "Time from a commit of offsets to its durable end, refused and failed ones included"
)
EXPIRED: Final = Metric(
    "forebay_group_offsets_expired_total",
    "Committed offsets that were removed because their time was over, or because their topic is gone",
    ("cause",),
)
REMOVED: Final = Metric("forebay_groups_expired_total", "Groups that were removed because they had neither members nor offsets left")
TAKEOVER_SECONDS: Final = Metric(
    "forebay_group_takeover_duration_seconds",
    "Time that loading a group took, every one of its offsets written again",
    buckets=FEW_SECONDS_BUCKETS,
)

JOINED: Final = "join"
LEFT: Final = "leave"
TIMED_OUT: Final = "timeout"

TIMER_S_MIN: Final = 0.01
"""Between two looks at the clock: a loop's timer may be early by a millisecond."""

EXPIRED_TOGETHER_MAX: Final = WRITE_REQUEST_OPS_MAX - 1

log = structlog.get_logger("groups")


class GroupMetrics:
    """What the coordinator of groups counts and times."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._groups = telemetry.gauge(GROUPS)
        self._members = telemetry.gauge(MEMBERS)
        self._slots = telemetry.gauge(SLOTS)
        rebalances, expired = telemetry.counter(REBALANCES), telemetry.counter(EXPIRED)
        self._rebalances = {cause: rebalances.labels(cause) for cause in (JOINED, LEFT, TIMED_OUT)}
        self._commits = telemetry.counter(COMMITS)
        self._commit_seconds = telemetry.histogram(COMMIT_SECONDS)
        self._expired, self._orphaned = expired.labels("retention"), expired.labels("topic_deleted")
        self._removed = telemetry.counter(REMOVED)
        self._takeover_seconds = telemetry.histogram(TAKEOVER_SECONDS)

    def watch(self, groups: Callable[[], Iterable[Group]], slots: Callable[[], int]) -> None:
        """Ask these whenever somebody wants to know."""
        for state in GroupState:
            self._groups.labels(state.value).set_function(partial(_count, groups, state))
        self._members.set_function(lambda: float(sum(len(group.members) for group in groups())))
        self._slots.set_function(lambda: float(slots()))

    def note_step(self, before: Group, event: Event, after: Group) -> None:
        """Count the rebalance that `event` began, if it began one."""
        if after.state is GroupState.EMPTY or before.state is GroupState.PREPARING:
            return
        if after.state is GroupState.PREPARING or after.generation > before.generation:
            cause = JOINED if isinstance(event, Join) else LEFT if isinstance(event, Leave) else TIMED_OUT
            self._rebalances[cause].inc()

    def note_commit(self, error: GroupError, duration_s: float) -> None:
        self._commits.labels(error.name).inc()
        self._commit_seconds.observe(duration_s)

    def note_expired(self, *, expired: int, orphaned: int, is_over: bool) -> None:
        self._expired.inc(expired)
        self._orphaned.inc(orphaned)
        self._removed.inc(is_over)

    def note_takeover(self, duration_s: float) -> None:
        self._takeover_seconds.observe(duration_s)


def _count(groups: Callable[[], Iterable[Group]], state: GroupState) -> float:
    return float(sum(group.state is state for group in groups()))


class Timer:
    """`set` makes it go off when something is due: never before, and only once. Where nothing is due, no timer is set.

    A timer that is too early looks again when it goes off. So whatever only puts off what is due need not tell anybody, and `set` asks
    `next_due_s` again only after `note_change`.
    """

    def __init__(self, next_due_s: Callable[[], float | None], on_due: Callable[[], None], *, clock: Clock) -> None:
        """`next_due_s`: when something is due, by the monotonic clock."""
        self._next_due_s = next_due_s
        self._on_due = on_due
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._handle_due_s = 0.0
        self._may_be_due_earlier = True

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def note_change(self) -> None:
        """Something may be due earlier than it was when the timer was set."""
        self._may_be_due_earlier = True

    def set(self) -> None:
        if self._handle is not None and not self._may_be_due_earlier:
            return
        self._may_be_due_earlier = False
        due_s = self._next_due_s()
        if due_s is None or (self._handle is not None and self._handle_due_s <= due_s):
            return
        self.stop()
        self._handle_due_s = due_s
        delay_s = max(due_s - self._clock.monotonic_s(), TIMER_S_MIN)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        due_s = self._next_due_s()
        if due_s is not None and due_s <= self._clock.monotonic_s():
            self._on_due()
        else:
            self.set()


NOBODY: Final = 0
"""The token of a job that nobody waits for."""

J = TypeVar("J")
K = TypeVar("K")
E = TypeVar("E")


class PersistThenReply(NamedTuple):
    """What has to be durable before anybody hears of a job: `write` makes it so, and `then` answers.

    `then` is not called if `write` raises, or if the record was closed meanwhile.
    """

    write: Callable[[], Coroutine[Any, Any, None]]
    then: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals(Generic[E]):
    """The answer to jobs that did not happen, or may not have; `closed` makes it an exception."""

    line_full: E
    fenced: E
    """Another broker owns the record."""
    not_written: E
    """Nobody knows what became of a write, or this broker ends."""
    closed: Callable[[E], Exception]


class FencedState(Generic[J, E]):
    """A record that one broker owns, in its memory: one job at a time happens to it, and nobody hears of what is not durable yet.

    Requests and the passing of time are jobs in a line. A job that writes nothing is done at once; the others wait while a write is under
    way. When a write fails, the record is closed: everybody gets an error that makes them ask again, and its owner reads it again.

    What a job does to the record is decided elsewhere. Here is what keeps that decision true: its order, its write, and who is answered.
    """

    def __init__(
        self,
        start: Callable[[J, int], PersistThenReply | None],
        *,
        refusals: Refusals[E],
        jobs_max: int,
        next_due_s: Callable[[], float | None],
        due: J,
        on_not_written: Callable[[StorageError], None],
        on_close: Callable[[], None],
        clock: Clock,
        nursery: Nursery,
        name: str,
    ) -> None:
        """`start` does a job and answers its token, now or later, or returns what has to be written first. `due` is the job for the time
        that `next_due_s` names. `on_not_written` hears why a write failed, unless it was fenced; `on_close` is called once. `name` is what
        the tasks that write are called.
        """
        self._start = start
        self._refusals = refusals
        self._jobs_max = jobs_max
        self._due = due
        self._on_not_written = on_not_written
        self._on_close = on_close
        self._nursery = nursery
        self._name = name
        self._line: deque[tuple[J, int]] = deque()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """The waiters for an answer, by token, be their jobs in the line, being written, or done."""
        self._last_token = NOBODY
        self._is_starting = False
        self._is_writing = False
        self._closed_with: E | None = None
        self._timer = Timer(next_due_s, self._on_due, clock=clock)
        self._timer.set()

    @property
    def timer(self) -> Timer:
        return self._timer

    @property
    def is_open(self) -> bool:
        return self._closed_with is None

    @property
    def is_at_rest(self) -> bool:
        """Nothing happens to it and nobody waits."""
        return not (self._line or self._asked or self._is_writing or self._is_starting)

    async def ask(self, make: Callable[[int], J], *, deadline_s: float) -> Any:
        """What the job that `make` makes of a token is answered with.

        Raises the `closed` of its refusals, and `TimeoutError` after `deadline_s`. Then, or cancelled: the job has happened, or will, and
        nobody hears of it.
        """
        if self._closed_with is not None:
            raise self._refusals.closed(self._closed_with)
        if len(self._line) >= self._jobs_max:
            raise self._refusals.closed(self._refusals.line_full)
        self._last_token += 1
        token = self._last_token
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[token] = future
        try:
            self._line.append((make(token), token))
            self._advance()
            async with asyncio.timeout(deadline_s):
                return await future
        finally:
            self._asked.pop(token, None)

    def answer(self, token: int, answer: object) -> None:
        """Whoever waits no more, or was answered before, hears nothing."""
        future = self._asked.pop(token, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def take_next(self, fits: Callable[[J], K | None]) -> tuple[K, int] | None:
        """The next job in the line and its token, if it `fits` the one that is being started: it happens with that one. `fits` returns None
        for a job that does not.
        """
        if not self._line:
            return None
        job, token = self._line[0]
        fitting = fits(job)
        if fitting is None:
            return None
        self._line.popleft()
        return fitting, token

    def close(self, error: E) -> None:
        """Answer everybody with `error`, and everybody who asks later. A write that is under way may still land."""
        if self._closed_with is not None:
            return
        self._closed_with = error
        self._timer.stop()
        self._line.clear()
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(self._refusals.closed(error))
        self._on_close()

    def _advance(self) -> None:
        while self._line and not self._is_writing and self._closed_with is None:
            job, token = self._line.popleft()
            self._is_starting = True
            try:
                first = self._start(job, token)
            finally:
                self._is_starting = False
            if first is not None:
                self._begin(first)
        if not self._is_writing and self._closed_with is None:
            # What came during a write counts before the time that has passed.
            self._timer.set()

    def _on_due(self) -> None:
        if not self._is_writing:  # else the timer is set when the write is over
            self._line.append((self._due, NOBODY))
            self._advance()

    def _begin(self, first: PersistThenReply) -> None:
        self._is_writing = True
        task = self._nursery.spawn(self._carry_out(first), name=self._name)
        task.add_done_callback(self._note_end)

    async def _carry_out(self, first: PersistThenReply) -> None:
        try:
            await first.write()
        except Fenced:
            self.close(self._refusals.fenced)
            return
        except StorageError as failure:
            self._on_not_written(failure)
            self.close(self._refusals.not_written)
            return
        finally:
            self._is_writing = False
        if self._closed_with is None:
            first.then()
            self._advance()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            # The broker ends, perhaps before the first step of the write, or by a mistake of ours: nobody else answers.
            self._is_writing = False
            self.close(self._refusals.not_written)


class Closed(Exception):
    """The group is not this broker's any more, or has to be loaded again: `error` goes to the client."""

    def __init__(self, error: GroupError) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[PartitionId, Committed]


@dataclass(frozen=True, slots=True)
class ConfirmOwnership:
    """That the group is still this broker's, as of a read made for it: what memory says next is no older than the question."""


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget what is due by now, at most `EXPIRED_TOGETHER_MAX` offsets, and the group itself if nothing is left of it."""

    names: Names


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    pass


Job = Event | CommitOffsets | ConfirmOwnership | DeleteOffsets | DeleteGroup | Expire
A = TypeVar("A")

REFUSALS: Final = Refusals(
    line_full=GroupError.COORDINATOR_LOAD_IN_PROGRESS,
    fenced=GroupError.NOT_COORDINATOR,
    not_written=GroupError.COORDINATOR_NOT_AVAILABLE,
    closed=Closed,
)


class LoadedGroup:
    """A group whose coordinator this broker is. That one job happens at a time, and what becomes of those who wait, is `FencedState`'s."""

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
        limits: GroupLimits = DEFAULT_GROUP_LIMITS,
    ) -> None:
        """`on_close` is called once, when the group is closed for whatever reason."""
        self._stored = stored
        self._group = group
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._memory = memory
        self.members_bytes = growth_bytes(Group(group_id=group.group_id), group)
        """What its members hold, and the ids that were given out."""
        self._counted_bytes = 0
        self._coming_bytes = 0
        """What the offsets that are being written will hold."""
        self._on_close = on_close
        self._limits = limits
        self._record: FencedState[Job, GroupError] = FencedState(
            self._start,
            refusals=REFUSALS,
            jobs_max=limits.jobs_max,
            next_due_s=lambda: self._group.next_due_s,
            due=Tick(),
            on_not_written=self._note_not_written,
            on_close=self._let_go,
            clock=clock,
            nursery=nursery,
            name="group-write",
        )
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
        return self._record.is_open

    @property
    def is_idle(self) -> bool:
        """Nothing is lost when it is closed: no members and nobody who waits."""
        return self.is_unused and not self._group.pending

    @property
    def is_unused(self) -> bool:
        """It has no members, but member ids may have been given out: a client that brings one after it was closed gets another."""
        return self._group.state is GroupState.EMPTY and self._record.is_at_rest

    def is_silent(self, since_s: float) -> bool:
        """Nobody waits, and no member has given a sign of life since then. Loaded again, it is as it was, and so are their timeouts."""
        if not self._record.is_at_rest:
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
        found = await self._record.ask(make, deadline_s=deadline_s)
        assert isinstance(found, answer)
        return found

    def find_forgettable(self, names: Names) -> Forgettable:
        """What `Expire` would forget."""
        return find_forgettable(
            self._group, self._stored.offsets, names, now_ms=self._clock.now_ms(), retention_ms=self._settings.offsets_retention_ms
        )

    async def do(self, job: CommitOffsets | ConfirmOwnership | DeleteOffsets | DeleteGroup | Expire, *, deadline_s: float) -> GroupError:
        """Durable when it returns NONE. As `ask`."""
        error: GroupError = await self._record.ask(lambda _token: job, deadline_s=deadline_s)
        return error

    def member_bytes(self, member_id: str, instance_id: str | None) -> int:
        """What that member holds, or the static one in whose place it comes; 0 if there is none."""
        member = self._group.members.get(member_id)
        if member is None and instance_id is not None:
            member = self._group.static_member(instance_id)
        return 0 if member is None else member_bytes(member)

    def close(self, error: GroupError) -> None:
        """Answer everybody with `error`, and everybody who asks later."""
        self._record.close(error)

    def _let_go(self) -> None:
        self._count()
        # A write under way may still be applied, as after any of these errors; its clients do not wait for a store that is silent.
        self._stored.give_up()
        self._on_close(self)

    def _count(self) -> None:
        """What it holds now, in the memory of all groups."""
        held_bytes = GROUP_BYTES + self.members_bytes + self._stored.held_bytes + self._coming_bytes if self.is_open else 0
        self._memory.held_bytes += held_bytes - self._counted_bytes
        self._counted_bytes = held_bytes

    def _start(self, job: Job, token: int) -> PersistThenReply | None:
        match job:
            case CommitOffsets():
                return self._start_commit(job, token)
            case DeleteOffsets():
                held = [partition for partition in job.partitions if self._stored.offset(partition) is not None]
                return self._write(partial(self._stored.delete_offsets, self._group, held), [token])
            case ConfirmOwnership():
                return self._write(self._stored.check, [token])
            case DeleteGroup():
                return self._start_delete(token)
            case Expire():
                return self._start_expiry(job, token)
            case _:
                return self._step(job)

    def _step(self, event: Event) -> PersistThenReply | None:
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
            self._publish(group, effects)
            if not isinstance(event, Heartbeat):
                self._record.timer.note_change()
            return None

        def finish() -> None:
            self._metrics.note_step(before, event, group)
            self._publish(group, effects)
            self._record.timer.note_change()
            log.info("group", group=group.group_id, state=group.state.value, generation=group.generation, members=len(group.members))

        return self._write(partial(self._stored.save, group), [], finish)

    def _publish(self, group: Group, effects: tuple[Effect, ...]) -> None:
        self._group = group
        for effect in effects:
            if isinstance(effect, Reply):
                self._record.answer(effect.token, effect.answer)

    def _start_commit(self, commit: CommitOffsets, token: int) -> PersistThenReply | None:
        if self._is_to_nobody(commit):
            # Clients give up for this, so memory alone does not say it: another coordinator may have made the group.
            return self._write(self._stored.check, [token], answer=GroupError.GROUP_ID_NOT_FOUND)
        together = [(commit, token)]
        while len(together) < self._limits.commits_together_max and (following := self._record.take_next(self._fitting)) is not None:
            together.append(following)
        offsets: dict[PartitionId, Committed] = {}
        accepted = []
        for one, its_token in together:
            error = self._group.check_commit(one.member_id, one.instance_id, one.generation)
            if not error and not self._stored.has_room(one.offsets, beside=offsets):
                log.warning("group_has_too_many_offsets", group=self._group.group_id, offsets_max=self._limits.offsets_max)
                error = GroupError.INVALID_COMMIT_OFFSET_SIZE
            if not error and not self._memory.has_room(self._stored.growth_bytes(one.offsets)):
                self._memory.note_refusal("memory")
                error = GroupError.COORDINATOR_LOAD_IN_PROGRESS
            if error:
                self._record.answer(its_token, error)
            else:
                self._group = touch(self._group, one.member_id, self._clock.monotonic_s())
                offsets |= one.offsets
                accepted.append(its_token)
                self._coming_bytes += max(self._stored.growth_bytes(one.offsets), 0)
                self._count()
        if not accepted:
            return None
        return self._write(partial(self._stored.commit, self._group, offsets), accepted)

    def _fitting(self, job: Job) -> CommitOffsets | None:
        return job if isinstance(job, CommitOffsets) and not self._is_to_nobody(job) else None

    def _is_to_nobody(self, commit: CommitOffsets) -> bool:
        return commit.generation >= 0 and not self.exists

    def _start_expiry(self, job: Expire, token: int) -> PersistThenReply | None:
        found = self.find_forgettable(job.names)
        gone = [*found.orphaned, *found.expired][:EXPIRED_TOGETHER_MAX]
        is_over = found.is_over and self._stored.is_written and len(gone) == len(found.orphaned) + len(found.expired)
        if not gone and not is_over:
            self._record.answer(token, GroupError.NONE)
            return None

        def finish() -> None:
            orphaned = min(len(gone), len(found.orphaned))
            self._metrics.note_expired(expired=len(gone) - orphaned, orphaned=orphaned, is_over=is_over)
            log.info("group_expired", group=self._group.group_id, offsets=len(gone), is_removed=is_over)
            if is_over:
                self._end()

        write = partial(self._stored.delete, self._group) if is_over else partial(self._stored.delete_offsets, self._group, gone)
        return self._write(write, [token], finish)

    def _start_delete(self, token: int) -> PersistThenReply | None:
        if self._group.state is not GroupState.EMPTY:
            self._record.answer(token, GroupError.NON_EMPTY_GROUP)
        elif not self._stored.is_written:
            self._record.answer(token, GroupError.GROUP_ID_NOT_FOUND)
        else:
            return self._write(partial(self._stored.delete, self._group), [token], self._end)
        return None

    def _end(self) -> None:
        """It is deleted: what comes next begins a new group."""
        self.close(GroupError.COORDINATOR_LOAD_IN_PROGRESS)

    def _write(
        self,
        write: Callable[[], Coroutine[Any, Any, None]],
        tokens: list[int],
        finish: Callable[[], None] | None = None,
        *,
        answer: GroupError = GroupError.NONE,
    ) -> PersistThenReply:
        """Carry `write` out, then answer `tokens`, then `finish`."""

        async def counted() -> None:
            try:
                await write()
            finally:
                self._coming_bytes = 0
                self._count()

        def then() -> None:
            for token in tokens:
                self._record.answer(token, answer)
            if finish is not None:
                finish()

        return PersistThenReply(counted, then)

    def _note_not_written(self, failure: StorageError) -> None:
        log.warning("group_not_written", group=self._group.group_id, cause=str(failure))
