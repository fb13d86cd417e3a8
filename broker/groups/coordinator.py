"""The groups that this broker coordinates: found, loaded when first asked for, and let go when their slot is another broker's.

Questions about many groups go through them by the shards that hold them (`ByShard`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog

from broker.cluster.leadership import slot_of
from broker.cluster.ownership import Claim, Slots, slots_by_shard
from broker.groups.group import Closed, CommitOffsets, ConfirmOwnership, DeleteGroup, DeleteOffsets, GroupMetrics, LoadedGroup
from broker.groups.memory import GroupMemory, brought_bytes
from broker.groups.state import (
    GroupError,
    GroupSettings,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Sync,
    SyncAnswer,
)
from broker.groups.store import StoredGroup, read_heads
from broker.groups.sweep import Sweep
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.logs import Rarely
from runtime.singleflight import SingleFlight
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from runtime.turns import Turns
from storage.catalog.groups import GroupHead
from storage.errors import StorageError
from storage.metadata import keys
from storage.metadata.keys import GroupKeys
from storage.metadata.port import MetadataStore

SLOTS_CHECK_S: Final = 1.0
CHECKS_PER_LOOK: Final = 4
"""One in this number of checks looks whether the claims are still there, though nothing hints that they are not."""
GROUP_NAME_BYTES_MAX: Final = 1_024
TOGETHER_S_MAX: Final = 20.0
"""How long all groups of one question are asked one after the other, before it is answered without the rest: clients give up after 30 s."""

GROUP_CHARS_SAID_MAX: Final = 256
REFUSALS: Final = {
    "member": GroupError.MESSAGE_TOO_LARGE,
    "group": GroupError.GROUP_MAX_SIZE_REACHED,
    "memory": GroupError.COORDINATOR_LOAD_IN_PROGRESS,
    "groups": GroupError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Clients give up for the first two, which come again would be refused again, and come again for the others."""
FIXES: Final = {
    "member": "raise groups.member_max_size if it is an honest one",
    "group": "raise groups.memory_bytes, of which the members of one group may hold a quarter",
    "memory": "raise groups.memory_bytes, or find the client with that many groups, members or offsets",
    "groups": "find the client with that many groups that have members, or add brokers: no setting raises this bound",
}

E = TypeVar("E", Join, Sync, Heartbeat, Leave)
T = TypeVar("T")

log = structlog.get_logger("groups")


@dataclass(frozen=True, slots=True)
class Listing:
    """By name. `error` is NONE if these are all; else some may be missing, and it says why: ask again."""

    groups: list[GroupHead | LoadedGroup]
    error: GroupError


class Coordinator:
    """`run` must be running while it is used. Every request raises `Closed`: ask again, or elsewhere, as its error says."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        slots: Slots,
        clock: Clock,
        ids: IdSource,
        nursery: Nursery,
        settings: GroupSettings | None = None,
        telemetry: Telemetry | None = None,
        limits: GroupLimits = DEFAULT_GROUP_LIMITS,
    ) -> None:
        self.limits = limits
        self._metadata = metadata
        self._slots = slots
        self._clock = clock
        self._ids = ids
        self._nursery = nursery
        self._settings = settings or GroupSettings()
        self._groups: dict[str, tuple[LoadedGroup, Claim]] = {}
        self._by_shard = ByShard(metadata, nursery=nursery, limits=limits)
        self._loads: SingleFlight[str, LoadedGroup] = SingleFlight()
        telemetry = telemetry or Telemetry()
        self._metrics = GroupMetrics(telemetry)
        self._memory = GroupMemory(bytes_max=self._settings.memory_bytes_max, telemetry=telemetry, make_room=self._let_go)
        self._metrics.watch(lambda: [loaded.group for loaded, _ in self._groups.values()], lambda: len(slots.claims))
        self._sweep = Sweep(
            metadata=metadata, slots=slots, clock=clock, settings=self._settings, find=self.find, loaded=self.loaded, limits=limits
        )
        self._checks = 0
        self._looked_for_silent_s = float("-inf")
        self._refused: dict[str, object] = {}
        self._say_refused: Rarely | None = None
        self._has_groups = asyncio.Event()
        self._is_stopped = False

    @property
    def slots(self) -> Slots:
        return self._slots

    @property
    def settings(self) -> GroupSettings:
        return self._settings

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{self._ids.random_uuid()}"

    async def run(self) -> None:
        """Look after the claims, until cancelled. A broker that coordinates nothing only looks for offsets to forget."""
        self._nursery.spawn(self._sweep.run(), name="groups-sweep")
        checked_s = self._clock.monotonic_s()
        checking: asyncio.Task[None] | None = None
        while True:
            await self._has_groups.wait()
            await asyncio.sleep(self.limits.lost_check_s)
            self._drop_lost()
            # The store may take long to answer, and what nobody is asked about must not wait for that.
            is_due = self._clock.monotonic_s() - checked_s >= SLOTS_CHECK_S
            if is_due and (checking is None or checking.done()):
                checked_s = self._clock.monotonic_s()
                checking = self._nursery.spawn(self._check_slots(), name="groups-slots")
            if not self._groups and not self._slots.claims:
                self._has_groups.clear()

    def stop(self) -> None:
        """Tell everybody who waits, and who asks from now on, to look for another coordinator."""
        self._is_stopped = True
        self._close_all(list(self._groups))
        if self._say_refused is not None:
            self._say_refused.stop()

    async def join(self, group_id: str, make: Join) -> JoinAnswer:
        """The answer may take as long as a rebalance does. `token` of the event is filled in."""
        member_id = make.member_id or make.new_member_id
        size_bytes = brought_bytes((member_id, make.instance_id, make.client_id, make.client_host), make.protocols)
        if size_bytes > self._settings.member_bytes_max:
            return JoinAnswer(error=self._refuse("member", group_id, size_bytes), member_id=make.member_id)
        known = self.loaded(group_id)
        more_bytes = size_bytes - (0 if known is None else known.member_bytes(make.member_id, make.instance_id))
        if not self._memory.has_room(more_bytes):
            return JoinAnswer(error=self._refuse("memory", group_id, size_bytes), member_id=make.member_id)
        with self._memory.taking(size_bytes):
            loaded = await self.find(group_id)
            more_bytes = size_bytes - loaded.member_bytes(make.member_id, make.instance_id)
            if more_bytes > 0 and loaded.members_bytes + more_bytes > self._memory.group_bytes_max:
                return JoinAnswer(error=self._refuse("group", group_id, size_bytes), member_id=make.member_id)
            deadline_s = min(
                self.limits.join_wait_s_max, 2 * make.rebalance_timeout_s + make.session_timeout_s + self.limits.request_deadline_s
            )
            try:
                return await loaded.ask(_with_token(make), JoinAnswer, deadline_s=deadline_s)
            except TimeoutError:
                return JoinAnswer(error=GroupError.REBALANCE_IN_PROGRESS, member_id=make.member_id)

    async def sync(self, group_id: str, make: Sync) -> SyncAnswer:
        sizes = [len(assignment) for _, assignment in make.assignments]
        size_bytes = sum(sizes)
        if max(sizes, default=0) > self._settings.member_bytes_max or size_bytes > self._memory.group_bytes_max:
            return SyncAnswer(error=self._refuse("member", group_id, max(sizes)))
        if not self._memory.has_room(size_bytes):
            self._refuse("memory", group_id, size_bytes)
            return SyncAnswer(
                error=GroupError.COORDINATOR_NOT_AVAILABLE
            )  # of the codes to come again for, Java's clients know this one here
        with self._memory.taking(size_bytes):
            loaded = await self.find(group_id)
            try:
                return await loaded.ask(_with_token(make), SyncAnswer, deadline_s=self.limits.join_wait_s_max)
            except TimeoutError:
                return SyncAnswer(error=GroupError.REBALANCE_IN_PROGRESS)

    def _refuse(self, bound: str, group_id: str, size_bytes: int) -> GroupError:
        self._memory.note_refusal(bound)
        self._refused = {"group": group_id[:GROUP_CHARS_SAID_MAX], "bound": bound, "bytes": size_bytes, "fix": FIXES[bound]}
        if self._say_refused is None:
            self._say_refused = Rarely(
                lambda count: log.warning("group_member_refused", count=count, **self._refused), later=asyncio.get_running_loop().call_later
            )
        self._say_refused.happened()
        return REFUSALS[bound]

    async def heartbeat(self, group_id: str, make: Heartbeat) -> GroupError:
        loaded = await self.find(group_id)
        return (await loaded.ask(_with_token(make), HeartbeatAnswer, deadline_s=self.limits.request_deadline_s)).error

    async def leave(self, group_id: str, make: Leave) -> LeaveAnswer:
        loaded = await self.find(group_id)
        return await loaded.ask(_with_token(make), LeaveAnswer, deadline_s=self.limits.request_deadline_s)

    async def commit(self, group_id: str, commit: CommitOffsets) -> GroupError:
        """All of its offsets are durable if NONE."""
        started_s = self._clock.monotonic_s()
        error = GroupError.REQUEST_TIMED_OUT
        try:
            loaded = await self.find(group_id)
            error = await loaded.do(commit, deadline_s=self.limits.request_deadline_s)
        except Closed as closed:
            error = closed.error
            raise
        finally:
            self._metrics.note_commit(error, self._clock.monotonic_s() - started_s)
        return error

    async def sweep(self) -> None:
        """Forget now what is due, in all groups of this broker's slots. Raises `StorageError`."""
        await self._sweep.sweep()

    async def checked(self, group_id: str) -> LoadedGroup:
        """The group to read from, its offsets no older than this question."""
        loaded = await self.find(group_id)
        await loaded.do(ConfirmOwnership(), deadline_s=self.limits.request_deadline_s)
        return loaded

    async def delete(self, group_id: str) -> GroupError:
        loaded = await self.find(group_id)
        if not loaded.exists:
            return GroupError.GROUP_ID_NOT_FOUND
        return await loaded.do(DeleteGroup(), deadline_s=self.limits.request_deadline_s)

    async def delete_offsets(self, group_id: str, job: DeleteOffsets) -> GroupError:
        loaded = await self.find(group_id)
        return await loaded.do(job, deadline_s=self.limits.request_deadline_s)

    async def listed(self) -> Listing:
        """The groups of the slots that this broker holds, or is the winner of while nobody does; as they are stored if not loaded.

        Without those whose record this release cannot read. A shard that does not answer holds up its own groups and no others.
        """
        error = GroupError.NONE
        try:
            async with asyncio.timeout(self.limits.question_timeout_s):
                own = await self._slots.own()
        except (StorageError, TimeoutError) as unread:
            log.warning("claims_not_read", cause=repr(unread))
            error = GroupError.COORDINATOR_NOT_AVAILABLE
            own = [claim.slot for claim in self._slots.claims if self._slots.is_valid(claim)]
        found: dict[str, GroupHead | LoadedGroup] = {}
        unanswered: list[StorageError] = []
        silent_after_s = self.limits.silent_after_s

        async def read(shard_slots: Sequence[int]) -> None:
            try:
                found.update({head.group: head for head, _ in await read_heads(self._metadata, shard_slots, silent_after_s=silent_after_s)})
            except StorageError as unread:
                unanswered.append(unread)

        async with asyncio.TaskGroup() as shards:
            for shard_slots in slots_by_shard(self._metadata, own):
                shards.create_task(read(shard_slots))
        if unanswered:
            log.warning("groups_not_listed", shards=len(unanswered), cause=str(unanswered[0]))
            error = error or GroupError.COORDINATOR_LOAD_IN_PROGRESS
        for group_id, (loaded, _) in self._groups.items():
            if loaded.is_open and loaded.exists:
                found[group_id] = loaded
        return Listing([found[group_id] for group_id in sorted(found)], error)

    async def each(self, group_ids: Sequence[str], act: Callable[[int], Awaitable[T]], *, late: T) -> list[T]:
        """What `act`, which asks this coordinator, returns for each place in `group_ids`; `late` for those of a shard that does not answer,
        and for those whose turn has not come in TOGETHER_S_MAX.

        Who asks for one group alone waits as long as `act` does.
        """
        timeout_s = self.limits.question_timeout_s if len(group_ids) > 1 else None
        return await self._by_shard.each(group_ids, act, late=late, timeout_s=timeout_s, together_s=TOGETHER_S_MAX)

    async def find(self, group_id: str) -> LoadedGroup:
        """The group if it is this broker's, loaded. Raises `Closed`."""
        if keys.group_name_bytes(group_id) > GROUP_NAME_BYTES_MAX:
            raise Closed(GroupError.INVALID_GROUP_ID)
        if self._is_stopped:
            raise Closed(GroupError.NOT_COORDINATOR)
        if (known := self.loaded(group_id)) is not None:
            return known
        try:
            async with asyncio.timeout(self.limits.request_deadline_s):
                claim = await self._slots.claim(slot_of(group_id))
        except (StorageError, TimeoutError) as error:
            raise Closed(GroupError.COORDINATOR_NOT_AVAILABLE) from error
        if claim is None:
            raise Closed(GroupError.NOT_COORDINATOR)
        try:
            async with asyncio.timeout(self.limits.request_deadline_s):
                return await self._loads.run(group_id, lambda: self._load(group_id, claim))
        except (StorageError, TimeoutError) as error:
            log.warning("group_not_loaded", group=group_id, cause=repr(error))
            raise Closed(GroupError.COORDINATOR_LOAD_IN_PROGRESS) from error

    async def _load(self, group_id: str, claim: Claim) -> LoadedGroup:
        known = self._groups.get(group_id)
        if known is not None:
            if known[0].is_open and known[1] is claim:
                return known[0]
            known[0].close(GroupError.NOT_COORDINATOR)
        if not await self._slots.is_held(claim):
            # The session is gone and we have not heard of it yet: taking the group over would only disturb its coordinator.
            self._slots.forget(claim)
            raise Closed(GroupError.NOT_COORDINATOR)
        self._make_room()
        group_keys = GroupKeys(group_id, claim.slot)
        started_s = self._clock.monotonic_s()
        with self._memory.loading() as loading:
            stored, group = await StoredGroup.load(
                self._metadata,
                group_keys,
                group_id=group_id,
                owner=claim.version,
                clock=self._clock,
                loading=loading,
                limits=self.limits,
            )
            # Somebody may have taken it over before its offsets were read here: then these are that one's, and so are their versions.
            await stored.check()
        if not self._slots.is_valid(claim) or self._is_stopped:
            raise Closed(GroupError.NOT_COORDINATOR)
        if stored.is_written:
            self._metrics.note_takeover(self._clock.monotonic_s() - started_s)
        self._make_room()  # others may have been loaded meanwhile
        loaded = LoadedGroup(
            stored,
            group,
            clock=self._clock,
            nursery=self._nursery,
            settings=self._settings,
            metrics=self._metrics,
            memory=self._memory,
            on_close=self._forget,
            limits=self.limits,
        )
        self._groups[group_id] = loaded, claim
        self._has_groups.set()
        return loaded

    def loaded(self, group_id: str) -> LoadedGroup | None:
        """As `find`, if nobody has to be asked for that; None if somebody has."""
        known = self._groups.get(group_id)
        return known[0] if known is not None and known[0].is_open and self._slots.is_valid(known[1]) else None

    def _make_room(self) -> None:
        if len(self._groups) < self.limits.groups_loaded_max and not self._memory.is_full:
            return
        self._let_go()
        if len(self._groups) >= self.limits.groups_loaded_max or self._memory.is_full:
            self._refuse("memory" if self._memory.is_full else "groups", "", 0)
            raise Closed(GroupError.COORDINATOR_LOAD_IN_PROGRESS)

    def _let_go(self) -> None:
        """Let go of half of the groups without members; if there are none, of those nobody has joined yet; then of silent ones."""
        idle = [group_id for group_id, (loaded, _) in self._groups.items() if loaded.is_idle]
        idle = idle or [group_id for group_id, (loaded, _) in self._groups.items() if loaded.is_unused]
        idle = idle or self._silent()
        self._close_all(idle[: len(idle) // 2 + 1])

    def _silent(self) -> list[str]:
        """Groups whose members may be gone for long before their sessions end. Not looked for at every request that finds no room."""
        now_s = self._clock.monotonic_s()
        if now_s < self._looked_for_silent_s + self.limits.look_for_silent_s:
            return []
        self._looked_for_silent_s = now_s
        return [group_id for group_id, (loaded, _) in self._groups.items() if loaded.is_silent(now_s - self.limits.members_silent_s)]

    def _drop_lost(self) -> None:
        for claim in self._slots.claims:
            if not self._slots.is_valid(claim):
                self._close_slot(claim)
                self._slots.forget(claim)

    async def _check_slots(self) -> None:
        """One question at a time, so that a group that nobody uses costs one read per check."""
        self._checks += 1
        try:
            async with asyncio.timeout(self.limits.request_deadline_s):
                if self._slots.is_in_doubt or self._checks % CHECKS_PER_LOOK == 0:
                    await self._drop_replaced()
                else:
                    await self._give_up_slots()
        except (StorageError, TimeoutError) as error:
            log.warning("slots_not_checked", cause=repr(error))

    async def _drop_replaced(self) -> None:
        """Slots that were taken from this broker."""
        for claim in await self._slots.replaced():
            log.warning("slot_lost", slot=claim.slot)
            self._close_slot(claim)
            self._slots.forget(claim)

    async def _give_up_slots(self) -> None:
        """Slots whose winner is another broker by now."""
        for claim in self._slots.claims:
            if await self._slots.winner(claim.slot) not in (None, self._slots.own_id):
                self._close_slot(claim)
                await self._slots.give_up(claim)

    def _close_slot(self, claim: Claim) -> None:
        self._close_all([group_id for group_id, (_, its_claim) in self._groups.items() if its_claim is claim])

    def _close_all(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            self._groups[group_id][0].close(GroupError.NOT_COORDINATOR)

    def _forget(self, loaded: LoadedGroup) -> None:
        """It is closed: deleted, expired, let go, or its write failed. Whoever asks for it has it loaded again."""
        known = self._groups.get(loaded.group.group_id)
        if known is not None and known[0] is loaded:
            del self._groups[loaded.group.group_id]


class ByShard:
    """One request about many groups: those of one shard of the metadata store wait for each other, and never for those of another."""

    def __init__(self, metadata: MetadataStore, *, nursery: Nursery, limits: GroupLimits = DEFAULT_GROUP_LIMITS) -> None:
        self._metadata = metadata
        self._nursery = nursery
        self._late_max = limits.late_loads_max
        self._late: set[asyncio.Task[None]] = set()

    async def each(
        self,
        group_ids: Sequence[str],
        act: Callable[[int], Awaitable[T]],
        *,
        late: T,
        timeout_s: float | None,
        together_s: float = float("inf"),
    ) -> list[T]:
        """What `act` returns for each place in `group_ids`: shards side by side, the groups of a shard one by one. When one has taken
        `timeout_s` (None: forever), it and all of its shard that follow are `late`; when all so far have taken `together_s`, those that
        follow. Raises what `act` raises.

        `act` must end by itself: one that is late goes on, as long as these are few. Cancelled: `act` is.
        """
        places: dict[int, list[int]] = {}
        turns = Turns()
        for place, group_id in enumerate(group_ids):
            places.setdefault(self._metadata.shard_of(keys.group_partition_key(slot_of(group_id))), []).append(place)
            await turns.spent()
        end_s = asyncio.get_running_loop().time() + together_s
        answers = [late] * len(group_ids)

        async def go_through(its_places: Sequence[int]) -> None:
            for place in its_places:
                answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
                task = self._nursery.spawn(_settle(answer, act, place), name="group-asked")
                try:
                    await asyncio.wait({answer}, timeout=timeout_s)
                except asyncio.CancelledError:
                    task.cancel()
                    raise
                if not answer.done():
                    self._leave(task)
                    return
                answers[place] = answer.result()
                if asyncio.get_running_loop().time() >= end_s:
                    return

        async with asyncio.TaskGroup() as shards:
            for its_places in places.values():
                shards.create_task(go_through(its_places))
        return answers

    def _leave(self, task: asyncio.Task[None]) -> None:
        if len(self._late) >= self._late_max:
            task.cancel()
            return
        self._late.add(task)
        task.add_done_callback(self._late.discard)


def _with_token(event: E) -> Callable[[int], E]:
    return lambda token: replace(event, token=token)


async def _settle(answer: asyncio.Future[T], act: Callable[[int], Awaitable[T]], place: int) -> None:
    try:
        answer.set_result(await act(place))
    except Exception as error:  # noqa: BLE001 - the asker's business, as long as there is one: the nursery is the whole broker's
        answer.set_exception(error)
        answer.exception()  # marks it retrieved
    finally:
        answer.cancel()
