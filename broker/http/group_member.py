"""A member of a consumer group in the place of an HTTP client: it joins, leads if it must, and sends heartbeats by itself.

As with Kafka's clients, what was polled and not committed before a rebalance comes again: a member waits with its rejoining until its
client polls the next time, within REJOIN_WITHIN_S, so that it can commit before.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import structlog
from kio.schema.errors import ErrorCode

from broker.groups.coordinator import Coordinator
from broker.groups.group import Closed
from broker.groups.offset_expiration import CONSUMER
from broker.groups.state import GroupError, Heartbeat, Join, JoinAnswer, Leave, Protocol, Sync
from broker.handling.topics import TopicPartition
from broker.http.assignors import ASSIGNORS, assign, assignment_bytes, read_assignment, subscribers_of, subscription_bytes
from broker.http.consume import HttpReading, PolledRecords
from broker.http.produce import TopicName
from runtime.blocking import Blocking
from runtime.turns import Turns
from storage.errors import StorageError
from storage.limits import KIB

REBALANCE_TIMEOUT_S: Final = 60.0
REJOIN_WITHIN_S: Final = 10.0
HEARTBEAT_S: Final = 3.0
RETRY_S: Final = 0.5
LEAVE_WITHIN_S: Final = 5.0
CLIENT_ID: Final = "http"
TOPICS_MAX: Final = 1_000
SUBSCRIPTIONS_BYTES_MAX: Final = 64 * KIB
"""Members of a group that say more name no topics for its leader but those that there are."""
_MS_PER_S: Final = 1_000
_COME_AGAIN: Final = frozenset(
    {
        GroupError.COORDINATOR_LOAD_IN_PROGRESS,
        GroupError.COORDINATOR_NOT_AVAILABLE,
        GroupError.REBALANCE_IN_PROGRESS,
        GroupError.REQUEST_TIMED_OUT,
        GroupError.ILLEGAL_GENERATION,
    }
)

_log = structlog.get_logger("http")


class NewConsumerDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"begin": "from"}):
    """`from`: where to begin in a partition of which the group has committed nothing."""

    topics: Annotated[list[TopicName], msgspec.Meta(min_length=1, max_length=TOPICS_MAX)]
    begin: Literal["end", "start"] = "end"
    session_timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 30_000
    idle_timeout_ms: Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)] = 60_000
    instance_id: Annotated[str, msgspec.Meta(min_length=1, max_length=249)] | None = None


class _Over(Exception):
    """The member is none any more, and why."""

    def __init__(self, error: GroupError) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(slots=True)
class GroupProgress:
    """How far a generation has read. `before`: the places that the last poll moved on from."""

    generation: int
    assigned: Sequence[TopicPartition]
    assigned_json: bytes
    """As each answer to a poll has it."""
    places: dict[TopicPartition, int | str]
    before: dict[TopicPartition, int | str]
    polled: dict[TopicPartition, int]
    """The next offsets of what was polled, to be committed."""
    is_told: bool = False
    was_told: bool = False
    turn: int = 0
    """Where the next poll begins: a partition that fills answers is not to be the first of all."""

    def move_on(self, records: PolledRecords, begin: str) -> None:
        """Note that an answer was given. `begin`: where to go on in a partition whose records at its place are gone."""
        moved: dict[TopicPartition, int | str] = dict(records.next_offsets)
        moved |= dict.fromkeys(records.out_of_range, begin)
        self.before = {one: self.places[one] for one in moved}
        self.places |= moved
        self.polled |= records.next_offsets
        self.was_told, self.is_told = self.is_told, True
        self.turn += records.width

    def go_back(self) -> None:
        """The last answer got lost."""
        self.is_told = self.was_told
        self.places |= self.before
        for one, place in self.before.items():
            if isinstance(place, int):
                self.polled[one] = place
            else:
                self.polled.pop(one, None)
        self.before = {}


class SentAnswer(NamedTuple):
    """An answer to a poll whose end the broker has not seen: the client may have it, or not."""

    poll: int
    progress: GroupProgress
    records: PolledRecords


class HttpConsumer:
    """One member. `run` joins and stays, until it is cancelled or the group has no place for it."""

    def __init__(self, reading: HttpReading, group: str, document: NewConsumerDocument, *, client_host: str, blocking: Blocking) -> None:
        self.consumer_id = secrets.token_hex(16)
        self.group = group
        self.document = document
        self._reading = reading
        self._parts = parts = reading.parts
        self._groups: Coordinator = parts.parts.groups
        self._blocking = blocking
        self._client_host = client_host
        self.member_id = ""
        self.last_asked_s = parts.clock.monotonic_s()
        self.is_polling = False
        self.polls = 0
        self.sent: SentAnswer | None = None
        self.progress: GroupProgress | None = None
        self.refusal: GroupError | None = None
        self.settled = asyncio.Event()
        """Set while `progress` is that of a generation, and when there is a refusal."""
        self._poll_begun = asyncio.Event()
        self._partition_counts: Mapping[str, int] = {}
        self._is_leader = False

    @property
    def idle_s(self) -> float:
        return 0.0 if self.is_polling else self._parts.clock.monotonic_s() - self.last_asked_s

    def note_answered(self, poll: int | None) -> None:
        """Move on, if that is the number of the answer that was sent: the client has it."""
        if (sent := self.sent) is not None and sent.poll == poll:
            self.sent, self.polls = None, sent.poll
            sent.progress.move_on(sent.records, self.document.begin)

    def note_poll(self) -> None:
        self._poll_begun.set()

    async def run(self) -> None:
        try:
            while True:
                if await self._has_joined():
                    await self._stay()
                else:
                    await asyncio.sleep(RETRY_S)
        except _Over as over:
            self._refused(over.error)
        except Exception:  # noqa: BLE001 - a member that fails is not to take its broker down
            _log.exception("http_consumer_failed", group=self.group)
            self._refused(GroupError.COORDINATOR_NOT_AVAILABLE)

    def _refused(self, error: GroupError) -> None:
        self.refusal, self.progress = error, None
        self.settled.set()

    async def leave(self) -> None:
        """Tell the group. Without an answer in time its session ends by itself."""
        if not self.member_id and self.document.instance_id is None:
            return
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                await self._groups.leave(self.group, Leave(token=0, members=((self.member_id, self.document.instance_id),)))
        except (Closed, TimeoutError):
            pass  # its session ends by itself
        except Exception:  # noqa: BLE001 - its session ends by itself, and the broker goes on
            _log.exception("http_consumer_not_left", group=self.group)

    async def _has_joined(self) -> bool:
        """False: try again. Raise `_Over`."""
        self._poll_begun.clear()
        try:
            joined = await self._ask_to_join()
            if joined.error is GroupError.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                joined = await self._ask_to_join()
            if joined.error:
                self._note_error(joined.error)
                return False
            self.member_id = joined.member_id
            self._is_leader = joined.leader == joined.member_id
            assignments = await self._assignments(joined) if self._is_leader else ()
            sync = Sync(
                token=0,
                member_id=self.member_id,
                instance_id=self.document.instance_id,
                generation=joined.generation,
                protocol_type=CONSUMER,
                protocol=joined.protocol,
                assignments=() if joined.skip_assignment else assignments,
            )
            synced = await self._groups.sync(self.group, sync)
            if synced.error:
                self._note_error(synced.error)
                return False
            if joined.skip_assignment and dict(assignments).get(self.member_id) != synced.assignment:
                # A static leader that is started again may lack partitions or topics of today: as its new self it joins once more.
                return False
            self.progress = await self._begin(joined.generation, synced.assignment)
        except Closed as closed:
            self._note_error(closed.error)
            return False
        except (StorageError, TimeoutError) as error:
            _log.warning("http_consumer_not_joined", group=self.group, cause=repr(error))
            return False
        self.settled.set()
        return True

    async def _ask_to_join(self) -> JoinAnswer:
        document = self.document
        join = Join(
            token=0,
            member_id=self.member_id,
            new_member_id=self._groups.new_member_id(document.instance_id or CLIENT_ID),
            instance_id=document.instance_id,
            client_id=CLIENT_ID,
            client_host=f"/{self._client_host}",
            session_timeout_s=document.session_timeout_ms / _MS_PER_S,
            rebalance_timeout_s=REBALANCE_TIMEOUT_S,
            protocol_type=CONSUMER,
            protocols=tuple(Protocol(assignor, subscription_bytes(set(document.topics))) for assignor in ASSIGNORS),
            knows_member_ids=True,
            knows_skip_assignment=True,
        )
        return await self._groups.join(self.group, join)

    def _note_error(self, error: GroupError) -> None:
        """Raise `_Over` for what does not pass."""
        if error is GroupError.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif error not in _COME_AGAIN:
            raise _Over(error)

    async def _assignments(self, joined: JoinAnswer) -> tuple[tuple[str, bytes], ...]:
        """Return what each member gets. When members say very much, the topics that there are bound what is kept of it."""
        said, topics = joined.members, self._parts.parts.topics
        there: dict[str, int] | None = None
        if sum(len(metadata) for *_, metadata in said) > SUBSCRIPTIONS_BYTES_MAX:
            there = {topic.name: topic.partition_count for topic in await topics.all()}
        members, wanted = await self._blocking.run(lambda: subscribers_of(said, there))
        self._partition_counts = counts = await self._counts(wanted) if there is None else {name: there[name] for name in wanted}
        protocol = joined.protocol or ASSIGNORS[0]
        return await self._blocking.run(
            lambda: tuple((member_id, assignment_bytes(share)) for member_id, share in assign(protocol, members, counts).items())
        )

    async def _counts(self, topics: Sequence[str]) -> dict[str, int]:
        """The partitions of those topics that there are."""
        found = await self._parts.parts.topics.lookup(topics)
        return dict.fromkeys(topics, 0) | {name: topic.partition_count for name, topic in found.items()}

    async def _begin(self, generation: int, assignment: bytes) -> GroupProgress:
        try:
            shares = await self._blocking.run(lambda: read_assignment(assignment))
        except ValueError as error:
            _log.warning("assignment_not_readable", group=self.group, member=self.member_id, cause=str(error))
            shares = {}
        topics = await self._parts.parts.topics.lookup_now(list(shares)) if shares else {}
        loaded = await self._groups.checked(self.group)
        places: dict[TopicPartition, int | str] = {}
        told: list[bytes] = []
        turns = Turns()
        for name, topic in sorted(topics.items()):
            before = b'{"topic":%b,"partition":' % msgspec.json.encode(name)
            for partition in dict.fromkeys(shares[name]):
                committed = loaded.stored.offset(topic.partition(partition))
                places[TopicPartition(name, partition)] = self.document.begin if committed is None else committed.offset
                told.append(b"%b%d}" % (before, partition))
                await turns.spent()
        found = await self._reading.places(places)
        # A place that cannot be told is asked for again by a poll, which tells the error.
        for named, place in found.items():
            if not isinstance(place, ErrorCode):
                places[named] = place
            await turns.spent()
        return GroupProgress(generation, list(places), b"[%b]" % b",".join(told), places, {}, {})

    async def _stay(self) -> None:
        """Until the group rebalances, or there are other partitions to assign. Raise `_Over`."""
        session_s = self.document.session_timeout_ms / _MS_PER_S
        assert self.progress is not None, "settled"
        beat = Heartbeat(token=0, member_id=self.member_id, instance_id=self.document.instance_id, generation=self.progress.generation)
        while True:
            await asyncio.sleep(min(HEARTBEAT_S, session_s / 3))
            try:
                error = await self._groups.heartbeat(self.group, beat)
            except Closed as closed:
                error = closed.error
            except TimeoutError:
                continue
            if error is GroupError.NONE:
                if self._is_leader and await self._has_other_partitions():
                    break
            elif error is GroupError.REBALANCE_IN_PROGRESS:
                self._poll_begun.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(REJOIN_WITHIN_S, session_s / 2)):
                        await self._poll_begun.wait()
                break
            else:
                self._note_error(error)
                if error in (GroupError.ILLEGAL_GENERATION, GroupError.UNKNOWN_MEMBER_ID):
                    break
        self.settled.clear()

    async def _has_other_partitions(self) -> bool:
        try:
            looked_at = dict(islice(self._partition_counts.items(), TOPICS_MAX))
            return await self._counts(list(looked_at)) != looked_at
        except StorageError:
            return False
