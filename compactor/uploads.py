"""Uploads in parts that nobody will finish are aborted: a process that is killed while it uploads leaves one behind, unseen and billed.

    list → of a key of ours, and both its times older than the grace time → abort

This is safe whatever the clocks say. An upload is no object before it is finished. One that is aborted under way makes its PUT fail and
stores nothing: a broker puts the object again, and a compaction is done again later, under another id. One that is aborted after it was
finished leaves its object alone. So a clock that is wrong costs work and loses nothing; and two must agree, that of the process which made
the id in the key, and the store's, so that one that is wrong does not even cost that.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from compactor.collector import SEGMENTS_PREFIX, WAL_PREFIX, UploadsReport
from runtime.clock import Clock
from runtime.ulid import ulid_ms
from storage.errors import StorageError
from storage.formats.segment import parse_segment_key
from storage.formats.wal import object_key
from storage.objects.port import ObjectStore, UnfinishedUpload
from storage.vocabulary import ObjectId

UPLOADS_MAX: Final = 1_000
ABORTED_TOGETHER: Final = 16
_PREFIXES: Final = tuple(sorted((WAL_PREFIX, SEGMENTS_PREFIX)))
"""In the order of their keys, so that one key says where a sweep goes on."""


class UploadSweep:
    """`run` again and again, one at a time. Any number of processes may sweep at once."""

    def __init__(self, *, objects: ObjectStore, clock: Clock, grace_ms: int, uploads_max: int = UPLOADS_MAX) -> None:
        """Uploads older than `grace_ms` are aborted. A run looks at `uploads_max`."""
        self._objects = objects
        self._clock = clock
        self._grace_ms = grace_ms
        self._uploads_max = uploads_max
        self._after = ""
        """The next run goes on behind all uploads of this key; one that begins again finds what that leaves out."""

    async def run(self, report: UploadsReport, *, dry_run: bool = False) -> bool:
        """Look at the next uploads, and add to `report`. Return whether the end was reached, or the rest could not be listed: then the next
        run begins again.

        Raises no `StorageError`: what stays costs money and harms nobody, and other upkeep must not wait for a permission or for a server
        that does not list uploads.
        """
        old = await self._next(report)
        if dry_run:
            report.aborted += len(old)
        else:
            await self._abort(old, report)
        return not self._after

    async def _next(self, report: UploadsReport) -> list[UnfinishedUpload]:
        after, self._after = self._after, ""
        oldest_kept_ms = self._clock.now_ms() - self._grace_ms
        old: list[UnfinishedUpload] = []
        left = self._uploads_max
        try:
            async with contextlib.aclosing(self._listed(after)) as listing:
                async for upload in listing:
                    report.looked_at += 1
                    left -= 1
                    made_ms = _made_ms(upload.key)
                    if made_ms is not None and max(made_ms, upload.begun_ms) < oldest_kept_ms:
                        old.append(upload)
                    if not left:
                        self._after = upload.key
                        break
        except StorageError as error:
            report.failed = error
        return old

    async def _listed(self, after: str) -> AsyncGenerator[UnfinishedUpload, None]:
        for prefix in _PREFIXES:
            async for upload in self._objects.unfinished_uploads(prefix, start_after=after):
                yield upload

    async def _abort(self, old: list[UnfinishedUpload], report: UploadsReport) -> None:
        waiting = iter(old)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ABORTED_TOGETHER):
                tasks.create_task(self._abort_each(waiting, report))

    async def _abort_each(self, waiting: Iterator[UnfinishedUpload], report: UploadsReport) -> None:
        for upload in waiting:
            try:
                await self._objects.abort_upload(upload.key, upload.upload_id)
            except StorageError as error:
                report.failed = error
                # What is refused once is refused again: the others are for the next run that comes by here.
                deque(waiting, maxlen=0)
            else:
                report.aborted += 1


def _made_ms(key: str) -> int | None:
    """When the id in a key was made, or None if it is no key of ours."""
    named = parse_segment_key(key)
    object_id = ObjectId(key.rpartition("/")[2]) if named is None else named[1]
    with contextlib.suppress(ValueError):
        made_ms = ulid_ms(object_id)
        if named is not None or key == object_key(object_id):
            return made_ms
    return None
