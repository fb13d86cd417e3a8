"""Bytes that wait for their turn: in memory up to a bound, else in a file without a name. One round of compactions long."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, Final

from runtime.blocking import Blocking
from storage.errors import Unavailable
from storage.limits import MIB
from storage.vocabulary import Buffer

MEMORY_BYTES_MAX: Final = 16 * MIB


class Spool:
    """What `open_spool` opens. Calls may overlap."""

    def __init__(self, file: IO[bytes], blocking: Blocking, folder: Path | None) -> None:
        self._file = file
        self._folder = folder
        self._blocking = blocking
        self._end = 0

    async def append(self, parts: Sequence[Buffer]) -> int:
        """Keep the parts behind what is there. Return the position of the first. Raises `Unavailable`: there is no room."""
        position = self._end
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        self._end += len(joined)
        await self._run(lambda: self._write(position, joined))
        return position

    async def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at each position, of that length."""
        return await self._blocking.run(lambda: [self._read(position, length) for position, length in spans])

    async def _run(self, call: Callable[[], None]) -> None:
        try:
            await self._blocking.run(call)
        except OSError as error:
            raise Unavailable(
                f"compaction cannot keep slices: folder={str(self._folder or tempfile.gettempdir())!r} cause={error.strerror!r}: "
                "make room, or name another folder with compactor.spool_dir"
            ) from error

    def _write(self, position: int, data: Buffer) -> None:
        self._file.seek(position)
        self._file.write(data)

    def _read(self, position: int, length: int) -> bytes:
        self._file.seek(position)
        data = self._file.read(length)
        assert len(data) == length, f"never written: {position=} {length=}"
        return data


@contextlib.asynccontextmanager
async def open_spool(blocking: Blocking, *, folder: Path | None = None) -> AsyncIterator[Spool]:
    """`blocking` runs one call at a time. `folder`: of the file; None for the system's."""
    with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX, dir=None if folder is None else str(folder)) as file:
        yield Spool(file, blocking, folder)
