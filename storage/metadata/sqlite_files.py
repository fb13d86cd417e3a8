"""Are the files that SQLite has open still those that lie under their names? It does not look itself: a file that was removed or replaced
takes commits as before, and all of them are gone with the process.

The database, its log (`-wal`) and the index of that (`-shm`) stay the same files for as long as one store has them open: SQLite removes
the last two only when the last one closes.
"""

import os
from pathlib import Path
from typing import Final

from runtime.telemetry import Metric
from storage.metadata.sqlite_schema import reason_of

FILE_LOST: Final = Metric(
    "forebay_metadata_file_lost",
    "1 from when the SQLite file was removed or replaced under the broker: it commits nothing any more",
    aggregation="max",
)

_BESIDE: Final = ("-wal", "-shm")


class DatabaseFiles:
    """Made before the database is opened: what lies there afterwards may be another file than was opened. May be asked from any thread."""

    def __init__(self, path: Path) -> None:
        """Raise OSError if there is no database."""
        self._path = path
        self._opened: tuple[tuple[str, tuple[int, int]], ...] = ((str(path), _identity(str(path))),)
        self.lost: str | None = None
        """Which file is gone, once that was seen: for good, since whatever is put there later may have been written by others."""

    def add_beside(self) -> None:
        """When the first connection has read. Raise OSError if one of the files beside the database is not there."""
        # SQLite follows links before it names them.
        names = [f"{os.path.realpath(self._path)}{suffix}" for suffix in _BESIDE]
        self._opened += tuple((name, _identity(name)) for name in names)

    def look(self) -> str | None:
        """Why nothing that is committed or read now can be relied on; None while all is well. Some microseconds."""
        if self.lost is not None:
            return self.lost
        for name, opened in self._opened:
            try:
                found = _identity(name)
            except (FileNotFoundError, NotADirectoryError):
                self.lost = f"the metadata file was removed while it was open: path={name!r}"
                return self.lost
            except OSError as error:
                return f"the metadata file cannot be seen: {reason_of(error)}: path={name!r}"
            if found != opened:
                self.lost = f"the metadata file was replaced while it was open: path={name!r}"
                return self.lost
        return None


def _identity(name: str) -> tuple[int, int]:
    """One that is open keeps its own: no other file gets it meanwhile."""
    found = os.stat(name)
    return found.st_dev, found.st_ino
