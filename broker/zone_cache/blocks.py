"""Reads of objects that ask another broker of the zone first: a `RangeSource` between the caches of this broker and the object store.

    get → of which broker is the block? of this one: the store
                                        of another: ask it, ANSWER_S until it begins to answer and BODY_S until it has → else the store

A block belongs to one of the live brokers of the zone by rendezvous hash, so one that leaves moves its own blocks alone. All that ask the
owner at a time, and its own readers, share one GET (`StoreReads`). A broker that is asked waits for its store and for nothing else: for no
other broker, no room in its cache and no file of its machine. Two brokers would wait for each other there: a read of several blocks holds
its room, and what others wait for, while it asks. It answers what it has in memory, or what belongs to it as it sees the zone. So brokers
that see different zones ask one of them in vain.

Whatever another broker does, a read ends in the store's bytes or the store's error.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, NoReturn, Protocol

import structlog
from prometheus_client import Counter

from broker.cluster.leadership import Candidate, rank_candidates
from broker.zone_cache.wire import BlockRange
from process.accepting import PEER_CONNECTIONS_MAX
from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.singleflight import SingleFlight
from runtime.telemetry import Children, Metric, Telemetry
from storage.cache.blocks import RangeSource
from storage.catalog.brokers import BLOCKS_LISTENER, BrokerDirectory, BrokerRecord
from storage.errors import EndsEarly, StorageError
from storage.limits import BLOCK_BYTES, PART_BYTES
from storage.recordbatch import cut_views
from storage.vocabulary import Buffer

ANSWER_S: Final = 0.05
"""A peer that has not begun to answer by then is given up, and the store is read. Connecting, and waiting for a connection, count."""
BODY_S: Final = 2.0
"""A peer that has begun to answer has so long to send all of it."""
PEERS_MAX: Final = 16
"""The brokers of a zone with the lowest ids own all blocks; further ones ask them."""
ASKS_MAX: Final = PEER_CONNECTIONS_MAX // PEERS_MAX
"""Under way at a time to one peer: further ones wait within ANSWER_S. No more connections to it are kept."""
SERVED_MAX: Final = 16
"""Requests of peers under way at a time: more are refused, and their askers read from the store."""
FAILURES_MAX: Final = 3
"""In a row, from which on a peer is left alone."""
LEFT_ALONE_S: Final = 5.0
DISTRUSTED_MAX: Final = 1_024
DISTRUST_S: Final = 30.0
"""A look at what was read wrong, and what comes of it, take less."""
LOOK_EVERY_S: Final = 10.0
"""The directory hears of changes by hints, some of which may be missing."""

REQUESTS: Final = Metric(
    "forebay_peer_cache_requests_total",
    "Blocks asked of other brokers of the zone (storage.zone_cache): hit (it had them), miss (it read them); and those that were read from "
    "the store instead: timeout, refused (by it), damaged (not what it was asked for), unreachable, skipped (left alone after failures, or "
    "too many under way).",
    ("outcome",),
)

PeerFailure = Literal["timeout", "refused", "damaged", "unreachable"]
AskOutcome = Literal["hit", "miss", "timeout", "refused", "damaged", "unreachable", "skipped"]

_FIXES: Final[dict[PeerFailure, str]] = {
    "timeout": "open its HTTP port inside the zone, or correct its http.advertised",
    "unreachable": "open its HTTP port inside the zone, or correct its http.advertised",
    "refused": "compare the clock and metadata.url of the two brokers",
    "damaged": "look for a proxy between the two brokers, or correct its http.advertised",
}

_log = structlog.get_logger("zone_cache")


@dataclass(frozen=True, slots=True)
class ZoneLimits:
    """As the constants say."""

    answer_s: float = ANSWER_S
    body_s: float = BODY_S
    asks_max: int = ASKS_MAX
    served_max: int = SERVED_MAX
    failures_max: int = FAILURES_MAX
    left_alone_s: float = LEFT_ALONE_S


class Peer(NamedTuple):
    """A broker of the zone that answers for its blocks. `session_id` tells one life of it from the next."""

    broker_id: int
    host: str
    port: int
    session_id: int


class PeerBlock(NamedTuple):
    """The bytes that were asked for, checked, in parts of memory of their own. `was_here`: the peer had them."""

    parts: Sequence[Buffer]
    was_here: bool


class PeerFailed(Exception):
    """A peer gave no such bytes: the store is read. `is_well`: it has said why, and may give others at once."""

    def __init__(self, outcome: PeerFailure, cause: str, *, is_well: bool = False) -> None:
        super().__init__(cause)
        self.outcome: PeerFailure = outcome
        self.is_well = is_well


class Answering(Protocol):
    """A peer has begun to answer."""

    async def read(self, *, part_bytes: int) -> PeerBlock:
        """All of it, in parts of at most twice `part_bytes`. Raise `PeerFailed` if it is not what was asked for."""
        ...

    def close(self) -> None:
        """Give up what was not read. Called once, also after `read`."""
        ...


class BlockPeers(Protocol):
    """Asks for blocks. Each call may be cancelled: nothing is left of it then."""

    async def ask(self, peer: Peer, block: BlockRange) -> Answering:
        """Return when it begins to answer. Raise `PeerFailed`."""
        ...

    async def close(self) -> None: ...


def peers_of(records: Sequence[BrokerRecord], rack: str | None) -> list[Peer]:
    """The brokers of a zone that answer for blocks, PEERS_MAX at most."""
    found = [
        Peer(record.broker_id, endpoint.host, endpoint.port, record.session_id)
        for record in records
        if record.rack == rack and rack is not None and (endpoint := record.endpoint(BLOCKS_LISTENER)) is not None
    ]
    return sorted(found)[:PEERS_MAX]


def owner_of(key: str, position: int, peers: Sequence[Peer]) -> Peer | None:
    """PURE: the peer that reads the block at `position` of an object for all; None without peers."""
    ranked = rank_candidates(f"{key}|{position // BLOCK_BYTES}", [Candidate(peer.broker_id, None) for peer in peers], zone=None)
    return next((peer for peer in peers if ranked and peer.broker_id == ranked[0].broker_id), None)


class StoreReads:
    """Reads of the store that share what is under way, and what is lent."""

    def __init__(self, source: RangeSource) -> None:
        self._source = source
        self._flights: SingleFlight[BlockRange, Sequence[memoryview]] = SingleFlight()
        self._flying: dict[str, list[BlockRange]] = {}
        self._lent: dict[str, list[tuple[BlockRange, Sequence[memoryview]]]] = {}

    def lend(self, block: BlockRange, parts: Sequence[memoryview]) -> None:
        """Others may have it without a GET, until `take_back`."""
        self._lent.setdefault(block.key, []).append((block, parts))

    def take_back(self, key: str, lent: Sequence[memoryview]) -> None:
        left = [one for one in self._lent.pop(key) if one[1] is not lent]
        if left:
            self._lent[key] = left

    async def read(self, block: BlockRange, *, part_bytes: int) -> Sequence[memoryview]:
        """The bytes, in parts. Raises what the store raises, and `EndsEarly`."""
        for lent, parts in self._lent.get(block.key, ()):
            if lent.start <= block.start and block.end <= lent.end:
                return cut_views(parts, block.start - lent.start, block.end - lent.start)
        whole = next((one for one in self._flying.get(block.key, ()) if one.start <= block.start and block.end <= one.end), block)
        flying = self._flying.setdefault(block.key, [])
        flying.append(whole)
        try:
            parts = await self._flights.run(whole, partial(self._get, whole, part_bytes))
        finally:
            flying.remove(whole)
            if not flying:
                self._flying.pop(block.key, None)
        return parts if whole == block else cut_views(parts, block.start - whole.start, block.end - whole.start)

    async def _get(self, block: BlockRange, part_bytes: int) -> Sequence[memoryview]:
        parts = await self._source.get_parts(block.key, block.start, block.end, part_bytes=part_bytes)
        if (size_bytes := sum(map(len, parts))) != block.size_bytes:
            raise EndsEarly(f"a store gave {size_bytes} bytes of {block}")
        return [memoryview(part).toreadonly() for part in parts]


class LeftAlone:
    """Which peers are left alone: one that failed `failures_max` times in a row, for `left_alone_s`. Then one request finds out for all: a
    next failure renews it.
    """

    def __init__(self, limits: ZoneLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._failures: dict[int, int] = {}
        self._until_s: dict[int, float] = {}
        self._trying: set[int] = set()

    def may_ask(self, peer: Peer) -> bool:
        """Return whether a request may begin. Its outcome is noted by `note_answer` or `note_failure`."""
        until_s = self._until_s.get(peer.session_id)
        if until_s is None:
            return True
        if self._clock.monotonic_s() < until_s:
            return False
        # Nobody else for as long, unless this one is answered.
        self._until_s[peer.session_id] = self._clock.monotonic_s() + self._limits.left_alone_s
        self._trying.add(peer.session_id)
        return True

    def note_answer(self, peer: Peer) -> None:
        self._failures.pop(peer.session_id, None)
        self._until_s.pop(peer.session_id, None)
        self._trying.discard(peer.session_id)

    def note_failure(self, peer: Peer) -> bool:
        """Count a failure. Return whether the peer was being tried again after it was left alone."""
        count = self._failures[peer.session_id] = self._failures.get(peer.session_id, 0) + 1
        is_again = peer.session_id in self._trying
        self._trying.discard(peer.session_id)
        if is_again or (count >= self._limits.failures_max and peer.session_id not in self._until_s):
            self._until_s[peer.session_id] = self._clock.monotonic_s() + self._limits.left_alone_s
        return is_again

    def forget_others(self, peers: Sequence[Peer]) -> None:
        """Keep what is known of these alone."""
        kept = {peer.session_id for peer in peers}
        self._trying &= kept
        for known in (self._failures, self._until_s):
            for session_id in known.keys() - kept:
                del known[session_id]


class ZoneBlocks:
    """A `RangeSource`. `peers` tells the brokers of the zone, this one among them while it is one, without a wait; `own_id` which it is."""

    def __init__(
        self,
        source: RangeSource,
        *,
        peers: Callable[[], Sequence[Peer]],
        own_id: Callable[[], int],
        asking: BlockPeers,
        clock: Clock,
        telemetry: Telemetry,
        limits: ZoneLimits,
    ) -> None:
        self._source = source
        self._reads = StoreReads(source)
        self._peers = peers
        self._own_id = own_id
        self._asking = asking
        self._limits = limits
        self._clock = clock
        self._left_alone = LeftAlone(limits, clock)
        self._places: dict[int, asyncio.Semaphore] = {}
        self._distrusted: LruCache[str, float] = LruCache(DISTRUSTED_MAX)
        self._said: set[tuple[int, str]] = set()
        self._requests = Children[AskOutcome, Counter](telemetry.counter(REQUESTS).labels)

    def owns(self, block: BlockRange) -> bool:
        """Return whether other brokers of the zone ask this one for the block."""
        owner = owner_of(block.key, block.start, self._peers())
        return owner is not None and owner.broker_id == self._own_id()

    async def read_own(self, block: BlockRange) -> Sequence[memoryview]:
        """For a broker that asks: from the store, with others that read it. Raises what the store raises, and `EndsEarly`."""
        return await self._reads.read(block, part_bytes=PART_BYTES)

    def distrust(self, key: str) -> None:
        """Ask only the store for an object for DISTRUST_S: bytes of it were not those that were written.

        One read does not end that, because others read other parts of the object meanwhile.
        """
        self._distrusted.put(key, self._clock.monotonic_s() + DISTRUST_S)

    def _is_distrusted(self, key: str) -> bool:
        until_s = self._distrusted.peek(key)
        if until_s is not None and self._clock.monotonic_s() >= until_s:
            self._distrusted.pop(key)
            return False
        return until_s is not None

    async def run(self, directory: BrokerDirectory) -> NoReturn:
        """Look now and then at the brokers of the zone, and forget those that left, until cancelled."""
        while True:
            try:
                await directory.live()
            except StorageError as error:
                _log.debug("zone_not_read", cause=str(error))
            peers = self._peers()
            here = {peer.session_id for peer in peers}
            self._left_alone.forget_others(peers)
            self._said = {said for said in self._said if said[0] in here}
            # One that is held stays until it is given back: whoever waits for it has a deadline.
            self._places = {session_id: places for session_id, places in self._places.items() if session_id in here}
            await asyncio.sleep(LOOK_EVERY_S)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        parts = await self.get_parts(key, start, end, part_bytes=BLOCK_BYTES)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        if start == end or self._is_distrusted(key):
            return await self._source.get_parts(key, start, end, part_bytes=part_bytes)
        pieces = self._pieces(key, start, end)
        if len(pieces) == 1 and pieces[0][1] is None:
            return await self._reads.read(pieces[0][0], part_bytes=part_bytes)
        found: dict[int, Sequence[Buffer]] = {}
        lent: list[Sequence[memoryview]] = []

        async def read(block: BlockRange, peer: Peer | None) -> None:
            given = None if peer is None else await self._ask(peer, block, part_bytes=part_bytes)
            if given is None:
                given = await self._reads.read(block, part_bytes=part_bytes)
                # It is in no cache until the pieces of others are there, too, and who asks for it meanwhile need not read it.
                lent.append(given)
                self._reads.lend(block, given)
            found[block.start] = given

        try:
            if len(pieces) == 1:
                await read(*pieces[0])
            else:
                async with asyncio.TaskGroup() as group:
                    for piece in pieces:
                        group.create_task(read(*piece))
        except ExceptionGroup as failures:
            # What the store raised, not that it was asked several things at once.
            raise failures.exceptions[0] from None
        finally:
            for parts in lent:
                self._reads.take_back(key, parts)
        return [part for block, _ in pieces for part in found[block.start]]

    def _pieces(self, key: str, start: int, end: int) -> list[tuple[BlockRange, Peer | None]]:
        """Cut a range into pieces, each with the peer to ask; None is the store. Neighbours that the store is asked for are one piece."""
        own_id = self._own_id()
        peers = self._peers()
        if all(peer.broker_id == own_id for peer in peers):
            return [(BlockRange(key, start, end), None)]
        pieces: list[tuple[BlockRange, Peer | None]] = []
        for position in (start, *range((start // BLOCK_BYTES + 1) * BLOCK_BYTES, end, BLOCK_BYTES)):
            stop = min(end, (position // BLOCK_BYTES + 1) * BLOCK_BYTES)
            owner = owner_of(key, position, peers)
            asked = None if owner is None or owner.broker_id == own_id else owner
            if asked is None and pieces and pieces[-1][1] is None:
                pieces[-1] = pieces[-1][0]._replace(end=stop), None
            else:
                pieces.append((BlockRange(key, position, stop), asked))
        return pieces

    async def _ask(self, peer: Peer, block: BlockRange, *, part_bytes: int) -> Sequence[Buffer] | None:
        """The bytes; None if the store must be asked. Raises nothing that a peer can cause."""
        places = self._places.setdefault(peer.session_id, asyncio.Semaphore(self._limits.asks_max))
        is_asked = False
        try:
            async with asyncio.timeout(self._limits.answer_s) as deadline, places:
                if not self._left_alone.may_ask(peer):
                    self._requests["skipped"].inc()
                    return None
                is_asked = True
                answering = await self._asking.ask(peer, block)
                try:
                    deadline.reschedule(asyncio.get_running_loop().time() + self._limits.body_s)
                    given = await answering.read(part_bytes=part_bytes)
                finally:
                    answering.close()
        except TimeoutError:
            if is_asked:
                self._note_failure(peer, "timeout", "it did not answer in time")
            else:
                self._requests["skipped"].inc()
            return None
        except PeerFailed as failed:
            if failed.is_well:
                self._requests[failed.outcome].inc()
                self._left_alone.note_answer(peer)
            else:
                self._note_failure(peer, failed.outcome, str(failed))
            return None
        self._left_alone.note_answer(peer)
        self._requests["hit" if given.was_here else "miss"].inc()
        return given.parts

    def _note_failure(self, peer: Peer, outcome: PeerFailure, cause: str) -> None:
        self._requests[outcome].inc()
        # Once is no news: a broker is registered before it serves HTTP, and for a while after it was killed.
        if self._left_alone.note_failure(peer) and (peer.session_id, outcome) not in self._said:
            self._said.add((peer.session_id, outcome))
            _log.warning(
                "zone_peer_left_alone",
                broker_id=peer.broker_id,
                address=f"{peer.host}:{peer.port}",
                outcome=outcome,
                cause=cause,
                for_s=self._limits.left_alone_s,
                meaning="its blocks are read from the object store meanwhile; nothing is lost",
                fix=_FIXES[outcome],
            )
