"""Reads that ask another broker of the zone first: whatever it does, they end in the bytes of the store."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.zone_cache.blocks import (
    DISTRUST_S,
    DISTRUSTED_MAX,
    FAILURES_MAX,
    LEFT_ALONE_S,
    PEERS_MAX,
    Answering,
    Peer,
    PeerBlock,
    PeerFailed,
    ZoneBlocks,
    ZoneLimits,
    owner_of,
    peers_of,
)
from broker.zone_cache.wire import BlockRange
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.cache.blocks import BlockCache
from storage.catalog.brokers import BLOCKS_LISTENER, BrokerRecord, Endpoint
from storage.errors import EndsEarly, NotFound
from storage.limits import BLOCK_BYTES, KIB, PART_BYTES
from storage.opening import open_shared_blocks
from storage.vocabulary import Buffer
from tests.kit.stepping_clock import SteppingClock

KEY = "wal/01JGFJ/01JGFJJZ005591T038X855YAFS"
BODY = os.urandom(5 * BLOCK_BYTES + 100 * KIB)
OWN_ID = 1
PEERS = [Peer(number, "127.0.0.1", 8_000 + number, 100 + number) for number in (1, 2, 3)]
PATIENT = ZoneLimits(answer_s=60.0, body_s=60.0)
HASTY = ZoneLimits(answer_s=0.02, body_s=0.02)


class Objects:
    def __init__(self) -> None:
        self.gets: list[tuple[int, int]] = []
        self.error: Exception | None = None
        self.cut_bytes = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        (part,) = await self.get_parts(key, start, end, part_bytes=BLOCK_BYTES)
        return bytes(part)

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        self.gets.append((start, end))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return [BODY[start : end - self.cut_bytes]]


class Answered:
    def __init__(self, peers: "FakePeers", block: BlockRange) -> None:
        self._peers = peers
        self._block = block

    async def read(self, *, part_bytes: int) -> PeerBlock:
        await self._peers.body.wait()
        if self._peers.failure == "damaged":
            raise PeerFailed("damaged", "injected")
        body = bytes(self._block.size_bytes) if self._peers.wrong else BODY[self._block.start : self._block.end]
        return PeerBlock([body], was_here=self._peers.was_here)

    def close(self) -> None:
        self._peers.open -= 1


class FakePeers:
    """Peers that answer well, unless they have a `failure`; each waits for `head` before it begins to answer, and for `body` then."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, BlockRange]] = []
        self.head, self.body = asyncio.Event(), asyncio.Event()
        self.head.set()
        self.body.set()
        self.failure = ""
        self.was_here = True
        self.wrong = False
        self.open = self.open_most = 0

    async def ask(self, peer: Peer, block: BlockRange) -> Answering:
        self.asked.append((peer.broker_id, block))
        await self.head.wait()
        if self.failure == "unreachable":
            raise PeerFailed("unreachable", "injected")
        if self.failure in ("refused", "busy"):
            raise PeerFailed("refused", "injected", is_well=self.failure == "busy")
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        return Answered(self, block)

    async def close(self) -> None:
        pass


class Zone:
    def __init__(self, limits: ZoneLimits = PATIENT) -> None:
        self.objects = Objects()
        self.asking = FakePeers()
        self.peers: list[Peer] = list(PEERS)
        self.clock = SteppingClock()
        self.telemetry = Telemetry()
        self.blocks = ZoneBlocks(
            self.objects,
            peers=lambda: self.peers,
            own_id=lambda: OWN_ID,
            asking=self.asking,
            clock=self.clock,
            telemetry=self.telemetry,
            limits=limits,
        )

    async def read(self, start: int, end: int, key: str = KEY) -> bytes:
        return b"".join(await self.blocks.get_parts(key, start, end, part_bytes=PART_BYTES))

    def outcomes(self) -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for family in self.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == "forebay_peer_cache_requests_total"
        }

    def blocks_of(self, *owners: int) -> list[int]:
        """The numbers of the first blocks of KEY that belong to one of these brokers."""
        return [number for number in range(5) if owner(number, self.peers) in owners]


def owner(number: int, peers: Sequence[Peer], key: str = KEY) -> int:
    found = owner_of(key, number * BLOCK_BYTES, peers)
    assert found is not None
    return found.broker_id


def key_of(owner_id: int, peers: Sequence[Peer] = PEERS) -> str:
    """An object whose first block belongs to that broker."""
    return next(key for number in range(10_000) if owner(0, peers, key := f"wal/{number}") == owner_id)


def test_a_broker_that_leaves_moves_its_blocks_alone() -> None:
    peers = [Peer(number, "h", 1, number) for number in range(8)]
    before = {(key, number): owner(number, peers, f"wal/{key}") for key in range(200) for number in range(3)}
    for gone in peers:
        left = [peer for peer in peers if peer is not gone]
        after = {(key, number): owner(number, left, f"wal/{key}") for key, number in before}
        moved = {name for name in before if before[name] != after[name]}
        assert moved == {name for name in before if before[name] == gone.broker_id}
    shares = Counter(before.values())
    assert len(shares) == len(peers)
    assert max(shares.values()) < 2 * len(before) / len(peers)


def test_all_brokers_choose_the_same_owner_in_whatever_order_they_see_each_other() -> None:
    for number in range(50):
        assert len({owner(number, order) for order in (PEERS, PEERS[::-1], PEERS[1:] + PEERS[:1])}) == 1


async def test_blocks_of_others_come_from_them_and_the_rest_from_the_store() -> None:
    zone = Zone()

    assert await zone.read(10, len(BODY) - 10) == BODY[10:-10]

    for broker_id, block in zone.asking.asked:
        assert broker_id == owner(block.start // BLOCK_BYTES, PEERS) != OWN_ID
    read = [*[(block.start, block.end) for _, block in zone.asking.asked], *zone.objects.gets]
    assert sum(end - start for start, end in read) == len(BODY) - 20, "each byte once"
    assert zone.outcomes() == {"hit": len(zone.asking.asked)}


async def test_what_the_owner_had_to_read_is_a_miss() -> None:
    zone = Zone()
    zone.asking.was_here = False

    assert await zone.read(0, 100, key := key_of(2)) == BODY[:100]

    assert zone.asking.asked == [(2, BlockRange(key, 0, 100))]
    assert zone.objects.gets == []
    assert zone.outcomes() == {"miss": 1}


async def test_a_range_is_read_in_one_piece_too() -> None:
    zone = Zone()

    assert await zone.blocks.get_range(KEY, 100, 2 * BLOCK_BYTES) == BODY[100 : 2 * BLOCK_BYTES]
    assert await zone.blocks.get_range(KEY, 100, 100) == b""


@pytest.mark.parametrize("peers", [[], PEERS[:1], PEERS[:1] * 2])
async def test_alone_in_its_zone_a_broker_reads_with_one_get(peers: list[Peer]) -> None:
    zone = Zone()
    zone.peers = peers

    assert await zone.read(0, 3 * BLOCK_BYTES) == BODY[: 3 * BLOCK_BYTES]

    assert zone.objects.gets == [(0, 3 * BLOCK_BYTES)]
    assert zone.outcomes() == {}


async def test_neighbouring_blocks_of_this_broker_cost_one_get() -> None:
    zone = Zone()
    zone.peers = [PEERS[0], PEERS[1]]
    key = next(key for number in range(10_000) if [owner(n, zone.peers, key := f"wal/{number}") for n in range(3)] == [1, 1, 2])

    await zone.read(0, 3 * BLOCK_BYTES, key)

    assert zone.objects.gets == [(0, 2 * BLOCK_BYTES)]
    assert zone.asking.asked == [(2, BlockRange(key, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES))]


async def test_a_read_for_another_broker_asks_nobody_and_shares_the_get_of_this_broker_s_own_readers() -> None:
    zone = Zone()
    others, own = key_of(2), key_of(OWN_ID)

    assert b"".join(await zone.blocks.read_own(BlockRange(others, 0, 100))) == BODY[:100]
    assert zone.asking.asked == []
    assert zone.objects.gets == [(0, 100)]

    found = await asyncio.gather(
        zone.read(0, BLOCK_BYTES, own),
        *(zone.blocks.read_own(BlockRange(own, start, end)) for start, end in ((0, BLOCK_BYTES), (17, 2_000))),
    )
    assert [b"".join(parts) if isinstance(parts, list) else parts for parts in found] == [
        BODY[:BLOCK_BYTES],
        BODY[:BLOCK_BYTES],
        BODY[17:2_000],
    ]
    assert zone.objects.gets == [(0, 100), (0, BLOCK_BYTES)]


@pytest.mark.parametrize("failure", ["unreachable", "refused", "damaged"])
async def test_what_a_peer_does_wrong_is_read_from_the_store_and_counted(failure: str) -> None:
    zone = Zone()
    zone.asking.failure = failure

    assert await zone.read(0, 100, key_of(2)) == BODY[:100]

    assert zone.objects.gets == [(0, 100)]
    assert zone.outcomes() == {failure: 1}
    assert zone.asking.open == 0


@pytest.mark.parametrize("part", ["head", "body"])
async def test_a_peer_that_does_not_answer_in_time_is_not_waited_for(part: str) -> None:
    zone = Zone(HASTY)
    getattr(zone.asking, part).clear()

    assert await zone.read(0, 100, key_of(2)) == BODY[:100]

    assert zone.objects.gets == [(0, 100)]
    assert zone.outcomes() == {"timeout": 1}
    assert zone.asking.open == 0


async def test_a_peer_that_says_it_reads_is_waited_for_longer() -> None:
    zone = Zone(ZoneLimits(answer_s=0.02, body_s=60.0))
    zone.asking.body.clear()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(zone.read(0, 100, key_of(2)))
        await asyncio.sleep(0.05)
        zone.asking.body.set()

    assert reading.result() == BODY[:100]
    assert zone.objects.gets == []


async def test_a_peer_that_fails_several_times_in_a_row_is_left_alone_for_a_while() -> None:
    zone = Zone()
    zone.asking.failure = "unreachable"
    key = key_of(2)
    with capture_logs() as logs:
        for _ in range(FAILURES_MAX + 2):
            assert await zone.read(0, 100, key) == BODY[:100]
    assert len(zone.asking.asked) == FAILURES_MAX
    assert zone.outcomes() == {"unreachable": FAILURES_MAX, "skipped": 2}
    assert logs == [], "it may be starting, or have been killed"
    await zone.read(0, 100, key_of(3))
    assert zone.asking.asked[-1][0] == 3, "another one is asked"

    with capture_logs() as logs:
        for _ in range(3):
            zone.clock.advance(LEFT_ALONE_S + 1)
            for _ in range(2):
                await zone.read(0, 100, key)
    assert len(zone.asking.asked) == FAILURES_MAX + 1 + 3, "once each time"
    assert [(line["broker_id"], line["outcome"]) for line in logs] == [(2, "unreachable")]

    zone.clock.advance(LEFT_ALONE_S + 1)
    zone.asking.failure = ""
    for _ in range(2):
        await zone.read(0, 100, key)
    assert zone.outcomes()["hit"] == 2


async def test_a_peer_that_says_why_it_gives_nothing_is_asked_again() -> None:
    zone = Zone()
    zone.asking.failure = "busy"
    for _ in range(3 * FAILURES_MAX):
        assert await zone.read(0, 100, key_of(2)) == BODY[:100]

    assert zone.outcomes() == {"refused": 3 * FAILURES_MAX}


async def test_one_answer_makes_up_for_failures_before_it() -> None:
    zone = Zone()
    for _ in range(3):
        for failure in ("unreachable", "refused", ""):
            zone.asking.failure = failure
            await zone.read(0, 100, key_of(2))

    assert zone.outcomes() == {"unreachable": 3, "refused": 3, "hit": 3}


async def test_a_broker_that_was_started_again_is_asked_at_once() -> None:
    zone = Zone()
    zone.asking.failure = "unreachable"
    for _ in range(FAILURES_MAX):
        await zone.read(0, 100, key_of(2))
    zone.asking.failure = ""
    zone.peers[1] = zone.peers[1]._replace(session_id=999)

    await zone.read(0, 100, key_of(2))

    assert zone.outcomes()["hit"] == 1


async def test_so_many_requests_to_a_peer_are_under_way_and_no_more() -> None:
    limits = ZoneLimits(answer_s=60.0, body_s=60.0, asks_max=3)
    zone = Zone(limits)
    zone.asking.body.clear()
    keys = [key for number in range(1_000) if owner(0, PEERS, key := f"wal/{number}") == 2][:12]
    async with asyncio.TaskGroup() as group:
        readings = [group.create_task(zone.read(0, 100, key)) for key in keys]
        await until(lambda: zone.asking.open == limits.asks_max)
        zone.asking.body.set()

    assert [reading.result() for reading in readings] == [BODY[:100]] * len(keys)
    assert zone.asking.open_most == limits.asks_max
    assert zone.objects.gets == []


def test_the_brokers_with_the_lowest_ids_own_the_blocks_of_a_large_zone() -> None:
    records = [
        BrokerRecord(
            broker_id=number,
            listeners=(Endpoint(BLOCKS_LISTENER, "localhost", 1_000 + number),),
            rack="a",
            version="0.1.0",
            started_at_ms=0,
            session_id=number,
        )
        for number in range(3 * PEERS_MAX, 0, -1)
    ]

    assert [peer.broker_id for peer in peers_of(records, "a")] == list(range(1, PEERS_MAX + 1))
    assert peers_of(records, "b") == peers_of(records, None) == []


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_an_object_that_was_read_wrong_is_read_from_the_store_by_all_for_a_while_and_then_from_peers_again() -> None:
    zone = Zone()
    key = key_of(2)
    zone.blocks.distrust(key)

    for _ in range(3):
        assert await zone.read(0, 100, key) == BODY[:100]
        zone.clock.advance(DISTRUST_S / 4)
    assert zone.asking.asked == []
    assert len(zone.objects.gets) == 3

    zone.clock.advance(DISTRUST_S / 4)
    assert await zone.read(0, 100, key) == BODY[:100]
    assert len(zone.objects.gets) == 3


async def test_so_many_distrusted_objects_are_remembered() -> None:
    zone = Zone()
    key = key_of(2)
    zone.blocks.distrust(key)
    for number in range(DISTRUSTED_MAX):
        zone.blocks.distrust(f"wal/x{number}")

    await zone.read(0, 100, key)

    assert len(zone.asking.asked) == 1


@pytest.mark.parametrize("size", [100, 5 * BLOCK_BYTES])
async def test_an_error_of_the_store_is_raised_as_it_is(size: int) -> None:
    zone = Zone()
    zone.asking.failure = "refused"
    zone.objects.error = NotFound("gone")

    with pytest.raises(NotFound):
        await zone.read(0, size)


async def test_a_store_that_gives_too_little_is_found_out() -> None:
    zone = Zone()
    zone.asking.failure = "refused"
    zone.objects.cut_bytes = 1

    with pytest.raises(EndsEarly):
        await zone.read(0, 5 * BLOCK_BYTES)


async def test_a_cancelled_read_leaves_nothing_open() -> None:
    zone = Zone()
    zone.asking.body.clear()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(zone.read(0, len(BODY)))
        await until(lambda: zone.asking.open > 0)
        reading.cancel()

    assert reading.cancelled()
    assert zone.asking.open == 0


async def test_readers_of_a_block_share_one_request_to_its_owner() -> None:
    zone = Zone()
    cache = BlockCache(zone.blocks, bytes_max=64 * BLOCK_BYTES, clock=zone.clock, telemetry=zone.telemetry)
    key = key_of(2)

    found = await asyncio.gather(*[cache.read(key, 0, 1_000) for _ in range(5)])

    assert {b"".join(views) for views in found} == {BODY[:1_000]}
    assert len(zone.asking.asked) == 1


async def test_bytes_that_a_peer_has_wrong_are_read_from_the_store_the_second_time() -> None:
    zone = Zone()
    zone.asking.wrong = True
    cache = BlockCache(zone.blocks, bytes_max=64 * BLOCK_BYTES, clock=zone.clock, telemetry=zone.telemetry, on_damaged=zone.blocks.distrust)
    key = key_of(2)

    views = await cache.read(key, 0, 1_000)
    assert b"".join(views) != BODY[:1_000]
    cache.drop_damaged(key, views)
    assert b"".join(await cache.read(key, 0, 1_000)) == BODY[:1_000]

    assert len(zone.asking.asked) == 1


async def test_the_folder_of_the_machine_is_looked_at_first_and_keeps_what_peers_gave(tmp_path: Path) -> None:
    zone = Zone()
    key = key_of(2)
    for _ in range(2):
        shared = open_shared_blocks(
            zone.blocks,
            str(tmp_path),
            bytes_max=64 * BLOCK_BYTES,
            cluster=lambda: "cluster",
            ids=IdSource(clock=zone.clock),
            clock=zone.clock,
            telemetry=zone.telemetry,
        )
        async with shared as folder:
            assert folder is not None
            assert await folder.get_range(key, 0, 1_000) == BODY[:1_000]
            await until(lambda: list(tmp_path.glob("cluster/*/*")) != [])

    assert len(zone.asking.asked) == 1
    assert zone.objects.gets == []


def test_a_broker_owns_what_others_ask_it_for() -> None:
    zone = Zone()

    for number in range(20):
        assert zone.blocks.owns(BlockRange(KEY, number * BLOCK_BYTES, number * BLOCK_BYTES + 1)) == (owner(number, PEERS) == OWN_ID)
    zone.peers = []
    assert not zone.blocks.owns(BlockRange(KEY, 0, 1))
