"""A group in the memory of its coordinator: what its jobs do to it, and what they write before anybody hears of it.

That one happens at a time, and what becomes of those who wait, is `OwnedRecord`'s. Commits that wait together travel together. A group
without members has no timer and costs nothing.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from broker.coordination.owned_record import OwnedRecord, Refusals, WriteFirst
from broker.groups.committed import Committed
from broker.groups.errors import GroupError
from broker.groups.events import Effect, Event, Heartbeat, Reply, Save, Tick
from broker.groups.members import Group, GroupState
from broker.groups.memory import GROUP_BYTES, GroupMemory, growth_bytes, member_bytes
from broker.groups.metrics import GroupMetrics
from broker.groups.offsets import StoredGroup
from broker.groups.retention import Forgettable, Names, find_forgettable
from broker.groups.settings import GroupSettings
from broker.groups.state import step, touch
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import StorageError
from storage.limits import WRITE_REQUEST_OPS_MAX
from storage.vocabulary import PartitionId

EXPIRED_TOGETHER_MAX: Final = WRITE_REQUEST_OPS_MAX - 1

log = structlog.get_logger("groups")


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
        self._record: OwnedRecord[Job, GroupError] = OwnedRecord(
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

    def _start(self, job: Job, token: int) -> WriteFirst | None:
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

    def _step(self, event: Event) -> WriteFirst | None:
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

    def _start_commit(self, commit: CommitOffsets, token: int) -> WriteFirst | None:
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

    def _start_expiry(self, job: Expire, token: int) -> WriteFirst | None:
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

    def _start_delete(self, token: int) -> WriteFirst | None:
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
    ) -> WriteFirst:
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

        return WriteFirst(counted, then)

    def _note_not_written(self, failure: StorageError) -> None:
        log.warning("group_not_written", group=self._group.group_id, cause=str(failure))
