"""Bytes that wait for their turn: in memory up to a bound, else in files without names. One round of compactions long.

Files are written and read past the page cache (storage/objects/files.py): on a virtual machine its pages cost 2 CPU seconds per GiB.
"""

import contextlib
import os
import tempfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from runtime.blocking import Blocking
from storage.errors import Unavailable
from storage.objects.files import read_own_unbuffered, write_unbuffered
from storage.vocabulary import Buffer

FILES_MAX: Final = 256
"""Chunks are larger where there would be more."""


class Spool:
    """What `open_spool` opens. `append` any number of times, then `seal`, then `read`. Calls may overlap."""

    def __init__(
        self, blocking: Blocking, *, chunk_bytes: int, unbuffered_from_bytes: int, folder: Path | None, closing: contextlib.ExitStack
    ) -> None:
        self._blocking = blocking
        self._chunk_bytes = chunk_bytes
        self._unbuffered_from_bytes = unbuffered_from_bytes
        self._folder = folder
        self._closing = closing
        self._starts: list[int] = []
        self._chunks: list[int | bytes] = []
        """Descriptors of files, and the bytes of a chunk that is in memory."""
        self._open: list[Buffer] = []
        self._open_start = 0
        self._end = 0

    async def append(self, parts: Sequence[Buffer]) -> int:
        """Keep the parts behind what is there. Return the position of the first. Raises `Unavailable`: there is no room."""
        position, size_bytes = self._end, sum(map(len, parts))
        if 3 * memoryview(memoryview(parts[0]).obj).nbytes > 4 * size_bytes:
            parts = [b"".join(parts)]  # they are a small part of what was read
        self._open += parts
        self._end += size_bytes
        if self._end - self._open_start >= self._chunk_bytes:
            number = self._begin_chunk()
            parts, self._open = self._open, []
            await self._run(lambda: self._write(number, parts))
        return position

    def seal(self) -> None:
        """All has been appended."""
        if self._open:
            number = self._begin_chunk()
            self._chunks[number] = b"".join(self._open)
            self._open = []

    async def read(self, spans: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes at each position, of that length. What may be written to is the caller's alone."""
        assert not self._open, "seal it first"
        return await self._blocking.run(lambda: [self._read(position, length) for position, length in spans])

    def _begin_chunk(self) -> int:
        self._starts.append(self._open_start)
        self._chunks.append(b"")
        self._open_start = self._end
        return len(self._chunks) - 1

    async def _run(self, call: Callable[[], None]) -> None:
        try:
            await self._blocking.run(call)
        except OSError as error:
            raise Unavailable(
                f"compaction cannot keep slices: folder={str(self._folder or tempfile.gettempdir())!r} cause={error.strerror!r}: "
                "make room, or name another folder with compactor.spool_dir"
            ) from error

    def _write(self, number: int, parts: Sequence[Buffer]) -> None:
        file = self._closing.enter_context(tempfile.TemporaryFile(buffering=0, dir=self._folder))  # noqa: SIM115 - closed with the round
        descriptor = file.fileno()
        if not write_unbuffered(descriptor, parts):
            for part in parts:
                rest = memoryview(part)
                while len(rest):
                    rest = rest[os.write(descriptor, rest) :]
        self._chunks[number] = descriptor

    def _read(self, position: int, length: int) -> Buffer:
        number = bisect_right(self._starts, position) - 1
        chunk, start = self._chunks[number], position - self._starts[number]
        if isinstance(chunk, bytes):
            data: Buffer = memoryview(chunk)[start : start + length]
        else:
            found = read_own_unbuffered(chunk, start, start + length, worthwhile_bytes=self._unbuffered_from_bytes)
            data = os.pread(chunk, length, start) if found is None else found
        assert len(data) == length, f"never written: {position=} {length=}"
        return data


@contextlib.asynccontextmanager
async def open_spool(
    blocking: Blocking, *, bytes_max: int, folder: Path | None = None, limits: CompactorLimits = DEFAULT_LIMITS
) -> AsyncIterator[Spool]:
    """For about `bytes_max`. `blocking` runs one call at a time. `folder`: of the files; None for the system's."""
    with contextlib.ExitStack() as closing:
        yield Spool(
            blocking,
            chunk_bytes=max(limits.spool_chunk_bytes, bytes_max // FILES_MAX),
            unbuffered_from_bytes=limits.spool_unbuffered_from_bytes,
            folder=folder,
            closing=closing,
        )
