"""Marks of commits in the object store (docs/design/upkeep.md#metadata-that-went-back).

An object forebay-marks/{ulid} names the last commit of each shard that its broker knows to be applied. Metadata without one of these are
older than the mark. A broker has one mark at a time. It puts the next one when it has committed since, every MARK_EVERY_S at most, and when
it stops. So an idle broker puts none; the commits of the last minutes before a kill are in no mark.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from runtime.clock import Clock
from runtime.ids import IdSource
from storage.catalog.records import decode_checked, encode_checked
from storage.errors import StorageError
from storage.metadata.keys import partition_of_control
from storage.metadata.version_watch import PutControl
from storage.objects.naming import MARKERS
from storage.objects.port import ObjectStore
from storage.objects.requests import caused_by
from storage.vocabulary import TopicId

FMT: Final = 1
MARKS_PREFIX: Final = f"{MARKERS}marks/"
MARK_EVERY_S: Final = 600.0
LOOK_EVERY_S: Final = 5.0
COMMITS_MAX: Final = 64
"""Shards that one mark names: a store that was put back was so in all of them."""
PUT_TIMEOUT_S: Final = 10.0
SIZE_BYTES_MAX: Final = 16_384

_log = structlog.get_logger("stores")


class MarkedCommit(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A control record that was put, and the version that the put got."""

    topic_id: TopicId
    partition: int
    version: int


class CommitMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fmt: int = FMT
    broker_id: int
    at_ms: int
    commits: tuple[MarkedCommit, ...]


_decoder = msgspec.json.Decoder(CommitMark)


async def read_mark(objects: ObjectStore, key: str) -> CommitMark:
    """Raise `NotFound`, `Unavailable`, `IncompatibleFormat`, or `Corrupt` for what is no mark."""
    size_bytes = (await objects.stat(key)).size_bytes
    return decode_checked(_decoder, bytes(await objects.get_range(key, 0, min(size_bytes, SIZE_BYTES_MAX))), known=FMT, path=key)


class CommitMarks:
    """`run` until cancelled, `put` once more when the last commit has its outcome. One call at a time."""

    def __init__(
        self, objects: ObjectStore, *, commits: Mapping[int, PutControl], broker_id: Callable[[], int], ids: IdSource, clock: Clock
    ) -> None:
        """`commits`: the last of each shard, which others write."""
        self._objects = objects
        self._commits = commits
        self._broker_id = broker_id
        self._ids = ids
        self._clock = clock
        self._marked: tuple[PutControl, ...] = ()
        self._key: str | None = None
        self._next_s = clock.monotonic_s() + MARK_EVERY_S

    async def run(self) -> None:
        """Mark what was committed, when it is time."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._clock.monotonic_s() >= self._next_s:
                await self.put()

    async def put(self) -> None:
        """Put a mark if there was a commit since the last one. A store that fails says so elsewhere: the next call tries again."""
        newest = tuple(sorted(self._commits.values(), key=lambda one: one.version)[-COMMITS_MAX:])
        if newest == self._marked:
            return
        named = [(partition_of_control(one.key.path), one.version) for one in newest]
        commits = tuple([MarkedCommit(*partition, version) for partition, version in named if partition is not None])
        mark = CommitMark(broker_id=self._broker_id(), at_ms=self._clock.now_ms(), commits=commits)
        key = f"{MARKS_PREFIX}{self._ids.next_ulid()}"
        with caused_by("marker"):
            try:
                async with asyncio.timeout(PUT_TIMEOUT_S):
                    await self._objects.put_if_absent(key, [encode_checked(mark)])
            except (StorageError, TimeoutError) as error:
                _log.debug("commits_not_marked", cause=repr(error))
                return
            former, self._key, self._marked = self._key, key, newest
            self._next_s = self._clock.monotonic_s() + MARK_EVERY_S
            if former is not None:
                with contextlib.suppress(StorageError, TimeoutError):
                    async with asyncio.timeout(PUT_TIMEOUT_S):
                        await self._objects.delete_many([former])
