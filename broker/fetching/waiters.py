"""Waking long polls: own commits wake by themselves; commits of other brokers are learned by hints, and by a poll where hints get lost.

A poll is one read per shard, of all its partitions that somebody waits for; a shard that is silent holds up no other. Where that is
wanted, hints of a shard are trusted from the first that arrived until a poll finds a change that no hint announced, and partitions of
trusted shards are polled rarely. So a stream of hints that dries up costs one wait of up to `trusted_poll_s`, which ends the trust: nothing
rests on hints but time (I10).
"""

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from typing import Final, Self

from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from runtime.clock import Clock
from storage.log.fresh_reads import ControlReads
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import MetadataStore

TRUSTED_POLL_S: Final = 1.0
OWN_HINT_S: Final = 0.005
"""How long a hint waits for the end of a commit of this broker that may explain it."""
BEGUN_PER_STEP: Final = 500
"""Partitions that one reader begins to wait for, between two steps."""


class Waited:
    """The partitions that somebody waits for, with their shards."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self.shards: dict[PartitionLog, int] = {}

    def add(self, log: PartitionLog) -> None:
        if log not in self.shards:
            self.shards[log] = self._metadata.shard_of(log.keys.partition_key)

    def discard(self, log: PartitionLog) -> None:
        self.shards.pop(log, None)


class Wait:
    """One reader's wait for any of its partitions to move, or to be woken otherwise. Used by `with`, so that nobody wakes the dead."""

    __slots__ = ("_begun", "_has_moved", "_logs", "_turn", "_waited")

    def __init__(self, logs: Sequence[PartitionLog], waited: Waited) -> None:
        self._logs = logs
        self._waited = waited
        self._begun = 0
        self._has_moved = False
        self._turn: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._has_moved = True
        self._end_turn()

    def begin_in_steps(self) -> Generator[None, None, None]:
        """As `with` begins, of many: a step is over wherever it yields. Leave it as by `with`, even if it has not come to its end."""
        while self._begun < len(self._logs):
            self._begin(self._logs[self._begun : self._begun + BEGUN_PER_STEP])
            yield

    def __enter__(self) -> Self:
        self._begin(self._logs)
        return self

    def _begin(self, logs: Sequence[PartitionLog]) -> None:
        for log in logs:
            log.readers.wakers[self.wake] = None
            self._waited.add(log)
        self._begun += len(logs)

    def __exit__(self, *_: object) -> None:
        for log in self._logs:
            log.readers.wakers.pop(self.wake, None)
            if not log.readers.wakers:
                self._waited.discard(log)

    async def moved(self, timeout_s: float) -> bool:
        """True as soon as a partition has moved since the last call; False after `timeout_s`."""
        if not self._has_moved:
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            timer = loop.call_later(timeout_s, self._end_turn)  # `asyncio.timeout` costs each fetch twice as much
            try:
                await self._turn
            finally:
                timer.cancel()
                self._turn = None
        moved, self._has_moved = self._has_moved, False
        return moved

    def _end_turn(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class Waiters:
    """Keeps the control records of partitions that somebody waits for up to date; a newer one wakes by itself."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        partitions: Partitions,
        control_reads: ControlReads,
        clock: Clock,
        trusted_poll_s: float | None = None,
        limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    ) -> None:
        """`trusted_poll_s`: how often partitions are polled whose hints arrive; as often as all others if it is not given."""
        self._poll_s = limits.poll_s
        self._trusted_poll_s = limits.poll_s if trusted_poll_s is None else trusted_poll_s
        self._metadata = metadata
        self._partitions = partitions
        self._control_reads = control_reads
        self._clock = clock
        self._waited = Waited(metadata)
        self._trusted: set[int] = set()
        self._hinted: dict[PartitionLog, float] = {}
        """With the time of the hint."""
        self._looks_again = False
        self._asked: set[int] = set()
        self._has_hint = asyncio.Event()
        self.is_stopped = False
        """Nobody waits any more, or begins to."""

    def stop(self) -> None:
        """Wake everybody, to be answered with what there is."""
        self.is_stopped = True
        for log in tuple(self._waited.shards):
            log.readers.wake()

    def wait(self, logs: Sequence[PartitionLog]) -> Wait:
        return Wait(logs, self._waited)

    async def run(self) -> None:
        """Until cancelled."""
        subscription = self._metadata.subscribe(self._hear)
        poll_at_s = self._clock.monotonic_s() + self._poll_s
        poll_all_at_s = self._clock.monotonic_s() + self._trusted_poll_s
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, poll_at_s - self._clock.monotonic_s())):
                        await self._has_hint.wait()
                self._has_hint.clear()
                hinted = self._take_hinted()
                polled: dict[int, dict[PartitionLog, int]] = {}
                now_s = self._clock.monotonic_s()
                if now_s >= poll_at_s:
                    poll_at_s = now_s + self._poll_s
                    is_full = now_s >= poll_all_at_s or self._trusted_poll_s <= self._poll_s
                    for log, shard in self._waited.shards.items():
                        if shard in self._asked or log in hinted.get(shard, ()) or not (is_full or shard not in self._trusted):
                            continue
                        # The version of one that was forgotten is remembered, but nobody listened to its hints since.
                        polled.setdefault(shard, {})[log] = -1 if log.seen.control is None else log.seen.version
                    if is_full:
                        poll_all_at_s = now_s + self._trusted_poll_s
                for shard in {**hinted, **polled}:
                    self._ask(shard, hinted.get(shard, {}), polled.get(shard, {}))
        finally:
            subscription.cancel()

    def _take_hinted(self) -> dict[int, dict[PartitionLog, None]]:
        """What was hinted of shards that are not being read, by shard; the others wait for the end of that read.

        Most hints are of this broker's own commits, and tell nothing:

            our CAS applies … its hint … its answer: it is explained … what the hint asks for was read for nobody

        So a hint waits for a commit that is under way. Another broker's that comes meanwhile is late by OWN_HINT_S at most.
        """
        taken: dict[int, dict[PartitionLog, None]] = {}
        kept: dict[PartitionLog, float] = {}
        now_s = self._clock.monotonic_s()
        for log, hinted_s in self._hinted.items():
            shard = self._waited.shards.get(log)
            if shard is None:
                continue  # nobody waits for it any more
            if log.seen.control is not None and not log.seen.is_hinted:
                continue
            if shard in self._asked:
                kept[log] = hinted_s
            elif log.lane.is_busy and now_s < hinted_s + OWN_HINT_S:
                kept[log] = hinted_s
                if not self._looks_again:
                    self._looks_again = True
                    asyncio.get_running_loop().call_later(OWN_HINT_S, self._look_again)
            else:
                taken.setdefault(shard, {})[log] = None
        self._hinted = kept
        return taken

    def _look_again(self) -> None:
        self._looks_again = False
        self._has_hint.set()

    def _ask(self, shard: int, hinted: dict[PartitionLog, None], polled: dict[PartitionLog, int]) -> None:
        """Have logs of one shard read. Nothing waits here: a silent shard holds up no other."""

        def ended(read: asyncio.Future[None]) -> None:
            self._asked.discard(shard)
            if self._hinted:
                self._has_hint.set()
            # Unreadable now: the next poll asks again, and a reader whose time is over reads for itself.
            if read.cancelled() or read.exception() is not None:
                return
            self._judge(polled)
            for log in (*hinted, *polled):
                if log.seen.control is None and log.seen.version >= 0:
                    log.readers.wake()  # it was there once: who waits for a deleted topic waits in vain

        # All are of one shard and asked for in one turn, so they share one read.
        (read,) = {self._control_reads.ask(log) for log in (*hinted, *polled)}
        self._asked.add(shard)
        read.add_done_callback(ended)

    def _hear(self, path: str, version: int | None) -> None:
        log = self._partitions.by_control_path(path)
        if log is None:
            return
        log.seen.note_hint(version, asyncio.get_running_loop().time())
        if log.readers.wakers:
            self._hinted.setdefault(log, self._clock.monotonic_s())
            self._has_hint.set()
            shard = self._waited.shards.get(log)
            if shard is not None:
                self._trusted.add(shard)

    def _judge(self, polled: dict[PartitionLog, int]) -> None:
        """What has moved without a hint (it may still come, and be trusted again)."""
        for log, version in polled.items():
            # A record that nobody had read when the poll began tells nothing.
            if version >= 0 and log.seen.version != version and log not in self._hinted and log.seen.version == log.seen.foreign_version:
                self._trusted.discard(self._waited.shards.get(log, -1))
