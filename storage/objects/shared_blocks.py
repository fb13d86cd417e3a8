"""Reads of objects through a folder that the processes of a machine share (block_folder.py), before the store that is behind it.

    get → in the folder? → claim what is missing, block by block → GET → the bytes, and in the background a file → no claim
                           claimed by another process: wait for its file, CLAIM_S at most, and then a GET as well

A broker puts its own WAL objects there, too, once their commits are applied (I8). Whatever is wrong with the folder, the store is asked.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise, repeat
from typing import Final, NoReturn, TypeVar

import structlog
from prometheus_client import Counter

from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.supervision import Nursery
from runtime.telemetry import Children, Metric, Telemetry
from storage.cache.blocks import RangeSource
from storage.errors import EndsEarly
from storage.limits import BLOCK_BYTES, MIB
from storage.objects.block_folder import BlockExtent, BlockFolder, FolderLook, LookedFor, PutEnd, folder_name, release
from storage.recordbatch import STAMP_BYTES, cut_views
from storage.vocabulary import Buffer

THREADS: Final = 4
LOOKS_MAX: Final = 64
"""Calls of the folder under way. While a disk gives no answers, these wait for it, and other reads ask the store at once."""
ANSWER_S: Final = 2.0
"""What the folder has not answered by then, the store is asked."""
CLAIM_S: Final = 5.0
"""What another process has claimed and not brought by then is fetched here as well. The claim of one that has ended is free at once."""
COMMIT_CLAIM_S: Final = 0.5
"""How long a broker claims the blocks of an object that it has stored, for readers that hear of the commit before there is a file."""
CLAIM_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.04)
"""Between two looks for what another process fetches, the last one from then on: no file tells that it is there."""
PUT_BYTES_MAX: Final = 32 * MIB
"""Bytes that wait to be put into the folder, or are. What is more is not put."""
DISTRUSTED_MAX: Final = 1_024
LOOK_AFTER_EVERY_S: Final = 15.0

REQUESTS: Final = Metric(
    "forebay_shared_cache_requests_total",
    "Reads through the folder of storage.cache_dir: hit (all of it was there), waited (another process brought it), miss (a GET); files "
    "that were damaged; and failed calls of the folder.",
    ("outcome",),
)
PUTS: Final = Metric(
    "forebay_shared_cache_puts_total",
    "Blocks for the folder of storage.cache_dir: put, there (already), full (nothing can be evicted), busy (another process evicts), "
    "failed, skipped (too much was on its way).",
    ("outcome",),
)
BYTES: Final = Metric(
    "forebay_shared_cache_bytes", "Bytes that all processes of the machine keep in the folder of storage.cache_dir.", aggregation="max"
)

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class CommittedObject:
    """The bytes of a WAL object until the last of its commits is applied: they are put into the folder then, and dropped if one never is.

    The first bytes of each batch are copied: they change when a batch gets its offset.
    """

    __slots__ = ("_claims", "_parts", "_shared", "_waiting", "key", "size_bytes")

    def __init__(self, shared: "SharedBlocks", key: str, parts: Sequence[Buffer], *, commits: int) -> None:
        self._shared = shared
        self._claims: list[int] = []
        self.key = key
        self.size_bytes = sum(map(len, parts))
        views = [memoryview(part) for part in parts]
        self._parts: list[Buffer] = [piece for view in views for piece in (bytes(view[:STAMP_BYTES]), view[STAMP_BYTES:])]
        self._waiting = commits

    def note_stored(self) -> None:
        """The object is durable, and its commits begin: whoever reads it from now on waits a moment for its file."""
        self._shared.claim(self)

    def hold(self, claims: Sequence[int]) -> list[int]:
        """Keep claims of its blocks until it was put. Returns all that are kept now, for the caller to give up when that takes too long."""
        self._claims += claims
        if not self._waiting:
            _give_up(self._claims)
        return self._claims

    def note_split(self) -> None:
        """One of its commits has become two."""
        self._waiting += 1

    def note_applied(self) -> None:
        """One of its commits was applied."""
        self._waiting -= 1
        if not self._waiting:
            parts, self._parts = self._parts, []
            claims = tuple(self._claims)
            self._claims.clear()
            self._shared.put(self.key, parts, claims)


class SharedBlocks:
    """A `RangeSource`. `blocking` has THREADS threads, and stays the caller's to close, after `nursery`.

    `cluster` tells the id of the cluster, or an empty text as long as it is not known: then the folder is not asked. Unless it `fills` the
    folder, it reads what others have put there.
    """

    def __init__(
        self,
        source: RangeSource,
        folder: BlockFolder,
        *,
        cluster: Callable[[], str],
        blocking: Blocking,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
        fills: bool = True,
        commit_claim_s: float = COMMIT_CLAIM_S,
    ) -> None:
        self._commit_claim_s = commit_claim_s
        self._source = source
        self._folder = folder
        self._cluster = cluster
        self._blocking = blocking
        self._clock = clock
        self._nursery = nursery
        self._fills = fills
        self._asking = 0
        self._putting_bytes = 0
        self._distrusted: LruCache[str, None] = LruCache(DISTRUSTED_MAX)
        self._said: set[str] = set()
        requests, puts = telemetry.counter(REQUESTS), telemetry.counter(PUTS)
        self._requests = Children[str, Counter](requests.labels)
        self._puts = Children[str, Counter](puts.labels)
        self._gauge = telemetry.gauge(BYTES)

    async def run(self) -> NoReturn:
        """Keep the folder in order, and its size on the page of metrics, until cancelled."""
        while True:
            error = await self._ask(self._folder.tidy)
            if error is not None:
                self._fail(error)
            totals = await self._ask(self._folder.totals)
            if totals is not None:
                self._gauge.set(totals.size_bytes)
            await asyncio.sleep(LOOK_AFTER_EVERY_S)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        if (name := self._name(key)) is None or start == end:
            return await self._source.get_range(key, start, end)
        parts = await self._get(name, key, start, end, part_bytes=BLOCK_BYTES)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        if (name := self._name(key)) is None or start == end:
            return await self._source.get_parts(key, start, end, part_bytes=part_bytes)
        return await self._get(name, key, start, end, part_bytes=part_bytes)

    def distrust(self, key: str) -> None:
        """What was read of an object is not what was written, though its files are as they were put: the next read asks the store."""
        self._distrusted.put(key, None)

    def committing(self, key: str, parts: Sequence[Buffer], *, commits: int) -> CommittedObject | None:
        """A WAL object of this broker, of which nothing is kept before all its `commits` are applied. None if it would have no room."""
        if sum(map(len, parts)) > PUT_BYTES_MAX:
            return None
        return CommittedObject(self, key, parts, commits=commits)

    def claim(self, committed: CommittedObject) -> None:
        """Claim the blocks of an object of this broker, in the background."""
        if (name := self._name(committed.key)) is not None:
            self._nursery.spawn(self._claim(committed, name), name="shared-cache-claim")

    async def _claim(self, committed: CommittedObject, name: str) -> None:
        whole = [BlockExtent(0, committed.size_bytes)]
        look = await self._ask(partial(self._folder.look, name, whole, part_bytes=BLOCK_BYTES, claims=True))
        if look is not None:
            claims = committed.hold(look.claims)
            asyncio.get_running_loop().call_later(self._commit_claim_s, _give_up, claims)

    def put(self, key: str, parts: Sequence[Buffer], claims: Sequence[int]) -> None:
        """Put an object of this broker, and give up the claims of it then."""
        if (name := self._name(key)) is None:
            release(claims)
        else:
            self._put(name, [(0, parts)], claims)

    def _name(self, key: str) -> str | None:
        cluster_id = self._cluster()
        return folder_name(cluster_id, key) if cluster_id and not self._nursery.is_left else None

    async def _get(self, name: str, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        if key in self._distrusted:
            self._distrusted.pop(key)
            await self._ask(partial(self._folder.forget, name))
            # Also where the folder keeps it: its files may be another user's.
            self._requests["miss"].inc()
            return await self._source.get_parts(key, start, end, part_bytes=part_bytes)
        found: dict[int, Sequence[Buffer]] = {}
        outcome = "hit"
        missing = [BlockExtent(start, end)]
        give_up_s = self._clock.monotonic_s() + CLAIM_S
        for pause_s in chain(CLAIM_PAUSES_S, repeat(CLAIM_PAUSES_S[-1])):
            look = await self._look(name, missing, part_bytes)
            is_late = look.error is not None or self._clock.monotonic_s() >= give_up_s
            mine, missing = _divided(look.found, is_late=is_late)
            found.update((one.start, one.parts) for one in look.found if one.parts is not None)
            if mine:
                outcome = "miss"
                await self._fetch(name, key, mine, look, found, part_bytes=part_bytes)
            else:
                release(look.claims)
            if not missing:
                break
            outcome = "waited" if outcome == "hit" else outcome
            await asyncio.sleep(pause_s)
        self._requests[outcome].inc()
        return _joined(found, start, end)

    async def _look(self, name: str, ranges: Sequence[BlockExtent], part_bytes: int) -> FolderLook:
        look = await self._ask(partial(self._folder.look, name, ranges, part_bytes=part_bytes, claims=self._fills))
        if look is None:
            error = OSError(errno.ETIMEDOUT, f"no answer within {ANSWER_S:g} s")
            look = FolderLook([LookedFor(start, end, None) for start, end in ranges], (), 0, error)
        if look.damaged:
            self._requests["damaged"].inc(look.damaged)
            self._say("damaged", "a file was not as it was written", "nothing is lost; if it happens again, check the disk")
        if look.error is not None:
            self._fail(look.error)
        return look

    async def _fetch(
        self,
        name: str,
        key: str,
        ranges: Sequence[BlockExtent],
        look: FolderLook,
        found: dict[int, Sequence[Buffer]],
        *,
        part_bytes: int,
    ) -> None:
        fetched: list[tuple[int, Sequence[Buffer]]] = []
        claims: Sequence[int] = look.claims
        try:
            for start, end in ranges:
                parts = await self._source.get_parts(key, start, end, part_bytes=part_bytes)
                if (size_bytes := sum(map(len, parts))) != end - start:
                    raise EndsEarly(f"a store gave {size_bytes} bytes of {key} [{start}, {end})")
                fetched.append((start, parts))
                found[start] = parts
            if self._fills and look.error is None:
                kept, claims = claims, ()
                self._put(name, fetched, kept)
        finally:
            release(claims)

    def _put(self, name: str, pieces: Sequence[tuple[int, Sequence[Buffer]]], claims: Sequence[int]) -> None:
        """Put them in the background, if there is room for them on the way, and give up the claims then."""
        size_bytes = sum([len(part) for _, parts in pieces for part in parts])
        if self._nursery.is_left or self._putting_bytes + size_bytes > PUT_BYTES_MAX:
            release(claims)
            self._puts["skipped"].inc()
            return
        self._putting_bytes += size_bytes
        blocks = [block for start, parts in pieces for block in _by_block(start, parts)]
        self._nursery.spawn(self._put_all(name, blocks, size_bytes, claims), name="shared-cache-put")

    async def _put_all(self, name: str, blocks: Sequence[tuple[int, Sequence[Buffer]]], size_bytes: int, claims: Sequence[int]) -> None:
        try:
            for start, parts in blocks:
                ended, error = await self._blocking.run(partial(self._folder.put, name, start, parts))
                self._puts[ended.value].inc()
                if error is not None:
                    self._fail(error)
                    break
                if ended is PutEnd.FULL:
                    self._say("full", "nothing in it can be removed", "check who owns the files in it")
        finally:
            self._putting_bytes -= size_bytes
            release(claims)

    async def _ask(self, call: Callable[[], T]) -> T | None:
        """What a call of the folder gives; None if it gives nothing in time. It goes on then, and what it claims is given up."""
        if self._asking >= LOOKS_MAX or self._nursery.is_left:
            return None
        self._asking += 1
        answer: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._nursery.spawn(self._answer(call, answer), name="shared-cache")
        is_taken = False
        try:
            async with asyncio.timeout(ANSWER_S):
                given = await answer
            is_taken = True
        except TimeoutError:
            return None
        finally:
            # It may have come while this was cancelled, or late.
            if not is_taken and answer.done() and not answer.cancelled():
                _let_go(answer.result())
        return given

    async def _answer(self, call: Callable[[], T], answer: "asyncio.Future[T | None]") -> None:
        given: T | None = None
        try:
            given = await self._blocking.run(call)
        finally:
            self._asking -= 1
            if not answer.done():
                answer.set_result(given)
            else:
                _let_go(given)

    def _fail(self, error: OSError) -> None:
        self._requests["failed"].inc()
        cause = (error.strerror or str(error)).lower()
        self._say(cause, cause, "make room, make it writable for this user, or name another folder with storage.cache_dir")

    def _say(self, kind: str, cause: str, fix: str) -> None:
        """Log it, the first time."""
        if kind not in self._said:
            self._said.add(kind)
            meaning = "what the folder of storage.cache_dir does not give is read from the object store"
            _log.warning("shared_cache_degraded", cause=cause, meaning=meaning, fix=fix)


def _divided(found: Sequence[LookedFor], *, is_late: bool) -> tuple[list[BlockExtent], list[BlockExtent]]:
    """The ranges to fetch here, and those to wait for. One GET goes on over what the folder has: a GET costs more than bytes do."""
    mine: list[BlockExtent] = []
    others: list[BlockExtent] = []
    goes_on = False
    for one in found:
        if one.parts is not None:
            continue
        if one.is_claimed and not is_late:
            others.append(BlockExtent(one.start, one.end))
            goes_on = False
        elif goes_on:
            mine[-1] = mine[-1]._replace(end=one.end)
        else:
            mine.append(BlockExtent(one.start, one.end))
            goes_on = True
    return mine, others


def _joined(found: dict[int, Sequence[Buffer]], start: int, end: int) -> Sequence[Buffer]:
    """Bytes [start, end) out of pieces by where they begin, of which later ones may begin inside earlier ones, and end there."""
    joined: list[Buffer] = []
    position = start
    for begin in sorted(found):
        parts = found[begin]
        after = begin + sum(map(len, parts))
        if after > position:
            joined += parts if begin == position else cut_views([memoryview(part) for part in parts], position - begin, after - begin)
            position = after
    assert position == end, f"pieces leave something out: start={start} end={end} position={position}"
    return joined


def _by_block(start: int, parts: Sequence[Buffer]) -> list[tuple[int, Sequence[Buffer]]]:
    views = [memoryview(part) for part in parts]
    end = start + sum(map(len, views))
    cuts = [start, *range((start // BLOCK_BYTES + 1) * BLOCK_BYTES, end, BLOCK_BYTES), end]
    return [(cut, cut_views(views, cut - start, after - start)) for cut, after in pairwise(cuts)]


def _give_up(claims: list[int]) -> None:
    release(claims)
    claims.clear()


def _let_go(given: object) -> None:
    if isinstance(given, FolderLook):
        release(given.claims)
