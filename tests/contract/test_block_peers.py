"""Asking another broker for a block by HTTP: what a good one answers arrives as it is, and whatever any other one answers is given up."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from broker.http.zone_blocks import ServesZone
from broker.zone_cache.blocks import Peer, PeerBlock, PeerFailed, ZoneBlocks, ZoneLimits, owner_of
from broker.zone_cache.peers import HttpPeers, ZoneCache
from broker.zone_cache.wire import (
    CLOCKS_DIFFER_MS_MAX,
    NONCE,
    NONCE_BYTES,
    READ,
    TRAILER_BYTES,
    BlockRange,
    checksum_of,
    signed_headers,
    target_of,
    trailer_of,
)
from process.http.health import Check, Health
from process.http.server import HttpServer, ProcessFacts
from process.settings.notation import HttpAddress
from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.cache.blocks import BlockCache
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.limits import BLOCK_BYTES, KIB, PART_BYTES
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

HOST = "127.0.0.1"
SECRET = os.urandom(32)
ULID = "01JGFJJZ005591T038X855YAFS"
KEYS = [
    object_key(ObjectId(f"01JGFJJZ005591T038X855Y{end}")) for end in ("AFS", "AFT", "AFV", "AFW", "AFX", "AFY", "AFZ", "AG0", "AG1", "AG2")
]
KEY = KEYS[0]
PAIR = [Peer(number, "127.0.0.1", number, number) for number in (1, 2)]
SEGMENT = segment_key(PartitionId(TopicId("8e66447a-4af2-46f2-9663-5c2cb2777f87"), 3), ObjectId(ULID))
BODY = os.urandom(BLOCK_BYTES + 100 * KIB)
BLOCK = BlockRange(KEY, 0, 1_000)
SOON_S = 60.0
PATIENT = ZoneLimits(answer_s=SOON_S, body_s=SOON_S)
CHUNKED = b"HTTP/1.1 200 OK\r\nforebay-read: memory\r\nTransfer-Encoding: chunked\r\n\r\n"


class Healthy:
    def sum_up(self) -> Health:
        return Health("ready", dict[str, Check]())


class Gated(MemoryObjectStore):
    """Counts GETs, and lets them wait."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.gets = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> "list[Buffer]":
        self.gets += 1
        await self.gate.wait()
        return [await self.get_range(key, start, end)]


class Owner:
    """A broker that serves blocks; it sees `peers` in its zone."""

    def __init__(self, objects: Gated, limits: ZoneLimits, *, own_id: int, bytes_max: int) -> None:
        self._own_id = own_id
        clock, self.telemetry = SystemClock(), Telemetry()
        self.objects = objects
        self.peers = [Peer(1, HOST, 1, 1)]
        self.asking = HttpPeers(SECRET, clock=clock, limits=limits)
        self.blocks = ZoneBlocks(
            objects,
            peers=lambda: self.peers,
            own_id=lambda: own_id,
            asking=self.asking,
            clock=clock,
            telemetry=self.telemetry,
            limits=limits,
        )
        self.cache = BlockCache(self.blocks, bytes_max=bytes_max, clock=clock, telemetry=self.telemetry)
        self.serves = ServesZone(ZoneCache(self.blocks, SECRET, limits), self.cache, clock=clock, telemetry=self.telemetry)
        self.address = HttpAddress(HOST, 0)

    @property
    def peer(self) -> Peer:
        return Peer(self._own_id, self.address.host, self.address.port, self._own_id)

    def asks(self) -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for family in self.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == "forebay_peer_cache_requests_total"
        }

    def answered(self) -> dict[str, float]:
        return {
            sample.labels["status"]: sample.value
            for family in self.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == "forebay_http_requests_total"
        }


@contextlib.asynccontextmanager
async def owning(limits: ZoneLimits = PATIENT, *, own_id: int = 1, bytes_max: int = 64 * BLOCK_BYTES) -> AsyncIterator[Owner]:
    objects = Gated()
    for key in KEYS:
        await objects.put_if_absent(key, [BODY])
    await objects.put_if_absent(SEGMENT, [BODY[::-1]])
    await objects.put_if_absent("forebay-cluster.json", [b"{}"])
    owner = Owner(objects, limits, own_id=own_id, bytes_max=bytes_max)
    blocking = ThreadBlocking(threads=1, name="http")
    server = HttpServer(
        ProcessFacts("/api/v1/broker", "0.1.0", dict),
        readiness=Healthy(),
        telemetry=Telemetry(),
        blocking=blocking,
        clock=SystemClock(),
        routes=[owner.serves.route()],
    )
    owner.address = await server.start(HttpAddress(HOST, 0))
    try:
        yield owner
    finally:
        objects.gate.set()
        await owner.asking.close()
        await server.stop()
        blocking.close()


async def get(peer: Peer, block: BlockRange, *, secret: bytes = SECRET, asking: HttpPeers | None = None) -> PeerBlock:
    mine = asking or HttpPeers(secret, clock=SystemClock(), limits=PATIENT)
    try:
        async with asyncio.timeout(SOON_S):
            answering = await mine.ask(peer, block)
            try:
                return await answering.read(part_bytes=PART_BYTES)
            finally:
                answering.close()
    finally:
        if asking is None:
            await mine.close()


@pytest.mark.parametrize("key", [KEY, SEGMENT])
@pytest.mark.parametrize(("start", "end"), [(0, BLOCK_BYTES), (0, 1), (17, 600 * KIB), (BLOCK_BYTES, BLOCK_BYTES + 100 * KIB)])
async def test_a_block_arrives_as_it_is_in_parts_of_their_own_and_is_read_once(key: str, start: int, end: int) -> None:
    body = BODY if key == KEY else BODY[::-1]
    async with owning() as owner:
        first = await get(owner.peer, BlockRange(key, start, end))
        again = await get(owner.peer, BlockRange(key, start, end))

        assert b"".join(first.parts) == b"".join(again.parts) == body[start:end]
        assert (first.was_here, again.was_here) == (False, True)
        assert owner.objects.gets == 1
        assert all(PART_BYTES <= len(part) < 2 * PART_BYTES for part in first.parts) or len(first.parts) == 1
        assert owner.answered() == {"200": 2}


async def test_many_that_ask_at_a_time_cost_one_get_and_hear_at_once_that_it_is_read() -> None:
    async with owning() as owner:
        owner.objects.gate.clear()
        asking = [HttpPeers(SECRET, clock=SystemClock(), limits=PATIENT) for _ in range(6)]
        answering = [await one.ask(owner.peer, BLOCK) for one in asking]
        assert owner.objects.gets <= 1
        owner.objects.gate.set()

        found = [await one.read(part_bytes=PART_BYTES) for one in answering]

        assert {b"".join(one.parts) for one in found} == {BODY[:1_000]}
        assert owner.objects.gets == 1
        for one, answer in zip(asking, answering, strict=True):
            answer.close()
            await one.close()


async def test_a_connection_is_kept_for_the_next_block() -> None:
    async with owning() as owner:
        asking = HttpPeers(SECRET, clock=SystemClock(), limits=ZoneLimits(asks_max=1))
        for start in range(0, 5_000, 1_000):
            await get(owner.peer, BlockRange(KEY, start, start + 1_000), asking=asking)
        await asking.close()

        assert owner.answered() == {"200": 5}


async def test_a_block_of_another_broker_is_answered_from_memory_alone() -> None:
    async with owning() as owner:
        owner.peers = [Peer(2, HOST, 1, 2)]
        with pytest.raises(PeerFailed, match="421") as failed:
            await get(owner.peer, BLOCK)
        assert failed.value.outcome == "refused"
        assert owner.objects.gets == 0

        await owner.cache.read(KEY, 0, 1_000)
        assert owner.answered() == {"421": 1}, "it was nobody's to answer: the other one does not listen"
        assert b"".join((await get(owner.peer, BLOCK)).parts) == BODY[:1_000]


async def test_brokers_that_take_each_other_for_the_owner_do_not_ask_in_circles() -> None:
    async with owning() as one, owning() as other:
        one.peers, other.peers = [other.peer._replace(broker_id=2)], [one.peer._replace(broker_id=2)]

        found = await asyncio.gather(one.cache.read(KEY, 0, 1_000), other.cache.read(KEY, 0, 1_000))

        assert [b"".join(views) for views in found] == [BODY[:1_000]] * 2
        assert one.objects.gets + other.objects.gets >= 1
        assert one.answered().keys() | other.answered().keys() <= {"421", "200"}


@contextlib.asynccontextmanager
async def zone_of_two(*, bytes_max: int = 64 * BLOCK_BYTES) -> AsyncIterator[tuple[Owner, Owner]]:
    async with owning(own_id=1, bytes_max=bytes_max) as one, owning(own_id=2, bytes_max=bytes_max) as other:
        one.peers = other.peers = [one.peer, other.peer]
        yield one, other


async def test_brokers_that_read_the_same_blocks_at_once_do_not_wait_for_each_other() -> None:
    # Each reads both blocks in one flight, and asks the other for one of them: that one may not wait for the other's flight.
    key = next(key for key in KEYS if {owner_of(key, at, PAIR) for at in (0, BLOCK_BYTES)} == set(PAIR))
    async with zone_of_two() as brokers:
        found = await asyncio.gather(*(broker.cache.read(key, 0, len(BODY), object_size=len(BODY)) for broker in brokers))

        assert [b"".join(views) for views in found] == [BODY] * 2
        assert [broker.objects.gets for broker in brokers] == [1, 1], "a block of each"


async def test_brokers_whose_caches_have_no_room_left_do_not_wait_for_each_other() -> None:
    async with zone_of_two(bytes_max=0) as brokers:
        reads = [broker.cache.read(key, 0, 1_000, object_size=len(BODY)) for broker in brokers for key in KEYS]
        found = await asyncio.gather(*reads)

        assert [b"".join(views) for views in found] == [BODY[:1_000]] * len(reads)
        assert set(brokers[0].asks()) | set(brokers[1].asks()) <= {"hit", "miss"}


async def test_more_at_a_time_than_are_served_are_refused() -> None:
    async with owning(ZoneLimits(answer_s=SOON_S, body_s=SOON_S, served_max=2)) as owner:
        owner.objects.gate.clear()
        asking = HttpPeers(SECRET, clock=SystemClock(), limits=PATIENT)
        under_way = [await asking.ask(owner.peer, BLOCK) for _ in range(2)]

        with pytest.raises(PeerFailed, match="503") as failed:
            await get(owner.peer, BLOCK)
        assert failed.value.outcome == "refused"

        owner.objects.gate.set()
        for one in under_way:
            await one.read(part_bytes=PART_BYTES)
            one.close()
        assert b"".join((await get(owner.peer, BLOCK, asking=asking)).parts) == BODY[:1_000]
        await asking.close()


async def test_what_the_owner_cannot_read_ends_its_answer() -> None:
    async with owning() as owner:
        with pytest.raises(PeerFailed) as failed:
            await get(owner.peer, BlockRange(object_key(ObjectId(ULID.replace("A", "B"))), 0, 100))
        assert (failed.value.outcome, failed.value.is_well) == ("refused", True)
        assert owner.answered() == {"499": 1}

        assert b"".join((await get(owner.peer, BLOCK)).parts) == BODY[:1_000], "the next one is answered"


async def test_an_owner_that_reads_for_too_long_gives_up() -> None:
    async with owning(ZoneLimits(answer_s=SOON_S, body_s=0.05)) as owner:
        owner.objects.gate.clear()
        with pytest.raises(PeerFailed) as failed:
            await get(owner.peer, BLOCK)
        assert (failed.value.outcome, failed.value.is_well) == ("refused", True)


# Requests without the secret, and requests for no block.


async def answer_to(owner: Owner, target: str, headers: dict[str, str], method: str = "GET") -> tuple[int, bytes]:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {owner.address}", "Connection: close", *[f"{k}: {v}" for k, v in headers.items()]]
    async with asyncio.timeout(SOON_S):
        reader, writer = await asyncio.open_connection(*owner.address)
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def signed(target: str, *, secret: bytes = SECRET, ahead_ms: int = 0) -> dict[str, str]:
    return signed_headers(secret, target, now_ms=SystemClock().now_ms() + ahead_ms, nonce=os.urandom(NONCE_BYTES))


async def test_without_the_secret_there_is_no_such_path_and_nothing_is_read() -> None:
    target = target_of(BLOCK)
    async with owning() as owner:
        nowhere = await answer_to(owner, target.replace("internal", "infernal"), {})
        hostile = [
            ({}, "GET"),
            (signed(target, secret=os.urandom(32)), "GET"),
            (signed(target_of(BLOCK._replace(end=999))), "GET"),
            (signed(target, ahead_ms=-CLOCKS_DIFFER_MS_MAX - 60_000), "GET"),
            (signed(target, ahead_ms=CLOCKS_DIFFER_MS_MAX + 60_000), "GET"),
            (signed(target) | {NONCE: "x" * 5_000}, "GET"),
            (signed(target), "POST"),
            (signed(target), "OPTIONS"),
            (signed(target), "HEAD"),
        ]
        for headers, method in hostile:
            status, body = await answer_to(owner, target, headers, method)
            assert status == nowhere[0] == 404
            assert body == (b"" if method == "HEAD" else nowhere[1].replace(b"infernal", b"internal"))

        assert owner.objects.gets == 0
        assert owner.answered() == {"404": len(hostile)}


@pytest.mark.parametrize(
    "target",
    [
        target_of(BlockRange(KEY, 0, BLOCK_BYTES + 1)),
        target_of(BlockRange(KEY, 0, 10**12 - 1)),
        target_of(BlockRange(KEY, 5, 5)),
        target_of(BlockRange("forebay-cluster.json", 0, 2)),
        target_of(BlockRange("../../etc/passwd", 0, 2)),
        target_of(BlockRange("wal/01JGFJ/..%2f..", 0, 2)),
        f"{target_of(BLOCK)}&end=5",
        "/internal/blocks",
    ],
)
async def test_what_is_no_block_is_refused_to_those_with_the_secret_too(target: str) -> None:
    async with owning() as owner:
        status, _ = await answer_to(owner, target, signed(target))

        assert status == 400
        assert owner.objects.gets == 0


# Answers of hostile and broken peers.

Says = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def answering(says: Says) -> AsyncIterator[Peer]:
    """A server that reads the head of a request, and then does as the test says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await says(reader, writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield Peer(9, HOST, server.sockets[0].getsockname()[1], 9)
    finally:
        server.close()
        await server.wait_closed()


def saying(head: bytes, body: bytes = b"") -> Says:
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)

    return says


def head(length: object, *, status: str = "200 OK", read: str = "memory") -> bytes:
    return f"HTTP/1.1 {status}\r\n{READ}: {read}\r\nContent-Length: {length}\r\n\r\n".encode()


WHOLE = BLOCK.size_bytes + TRAILER_BYTES
FORGED = BODY[:1_000] + trailer_of(os.urandom(32), "0" * 32, checksum_of([BODY[:1_000]]))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (head(WHOLE) + FORGED, "damaged"),
        (head(WHOLE) + bytes(WHOLE), "damaged"),
        (head(WHOLE) + FORGED[:-1], "unreachable"),
        (head(WHOLE), "unreachable"),
        (head(WHOLE + 1) + FORGED + b"x", "damaged"),
        (head(10**15) + FORGED, "damaged"),
        (head(0), "damaged"),
        (head(-1), "unreachable"),
        (head("a lot"), "unreachable"),
        (head(WHOLE, read="a dream") + FORGED, "damaged"),
        (head(WHOLE, status="404 Not Found") + FORGED, "refused"),
        (head(WHOLE, status="206 Partial Content") + FORGED, "refused"),
        (head(WHOLE, status="302 Found") + FORGED, "refused"),
        (CHUNKED + b"3e8\r\n" + BODY[:1_000] + b"\r\n0\r\n\r\n", "damaged"),
        (b"HTTP/1.1 200 OK\r\nforebay-read: memory\r\n\r\n" + FORGED, "damaged"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200_000, "unreachable"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 1_000_000, "unreachable"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "unreachable"),
        (b"", "unreachable"),
    ],
    ids=range(19),
)
async def test_an_answer_that_is_not_what_was_asked_for_is_given_up(answer: bytes, outcome: str) -> None:
    async with answering(saying(answer)) as peer:
        with pytest.raises(PeerFailed) as failed:
            await get(peer, BLOCK)

    assert failed.value.outcome == outcome


async def test_chunks_without_end_are_not_read() -> None:
    written = 0

    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(CHUNKED)
        while True:
            writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            written += 65_536
            await writer.drain()

    async with answering(says) as peer:
        with pytest.raises(PeerFailed) as failed:
            await get(peer, BLOCK)

    assert failed.value.outcome == "damaged"


async def test_nobody_there_is_unreachable() -> None:
    async with answering(saying(b"")) as peer:
        pass
    with pytest.raises(PeerFailed) as failed:
        await get(peer, BLOCK)

    assert failed.value.outcome == "unreachable"


@pytest.mark.parametrize("host", ["no such host", "a..b", "", "::1::"])
async def test_an_address_that_is_none_is_unreachable(host: str) -> None:
    with pytest.raises(PeerFailed) as failed:
        await get(Peer(9, host, 1, 9), BLOCK)

    assert failed.value.outcome == "unreachable"


async def test_an_answer_to_another_request_is_given_up() -> None:
    async with owning() as owner:
        async with aiohttp.ClientSession() as session:
            target = target_of(BLOCK)
            async with session.get(f"http://{owner.address}{target}", headers=signed(target)) as response:
                replayed = await response.read()
        async with answering(saying(head(WHOLE), replayed)) as peer:
            with pytest.raises(PeerFailed) as failed:
                await get(peer, BLOCK)

    assert replayed[:1_000] == BODY[:1_000]
    assert failed.value.outcome == "damaged"
