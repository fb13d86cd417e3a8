"""The file of the embedded metadata store, format 1: how it is made, recognised, opened, and found to be gone.

    records    k: sort key (key_order.py) · version · session (null: not ephemeral) · value
    sessions   id · owner (owners.py) · boot · renewed_ms since boot · timeout_ms
    counters   one row: the last version id, session id and change number given out
    changes    a ring of the last commits: slot = change % 256 · change · owner · paths, one a line

`PRAGMA application_id` says whose file it is, `PRAGMA user_version` which format.
The file must never be opened by anything but SQLite in this process: closing any other descriptor of it drops SQLite's locks.
SQLite does not look whether the files that it has open still lie under their names: `DatabaseFiles` does.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from runtime.telemetry import Metric
from storage.errors import IncompatibleFormat, Unavailable

FORMAT: Final = 1
APPLICATION_ID: Final = int.from_bytes(b"Fbay", "big")
CHANGES_KEPT: Final = 256
CACHE_KIB: Final = 16 * 1024
OPENING_TIMEOUT_S: Final = 5.0
REPAIR_MS: Final = 20
_TABLES: Final = """
CREATE TABLE records (k BLOB PRIMARY KEY, version INTEGER NOT NULL, session INTEGER, value BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX ephemeral ON records (session) WHERE session IS NOT NULL;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, boot TEXT NOT NULL, renewed_ms INTEGER NOT NULL, timeout_ms INTEGER NOT NULL
);
CREATE TABLE counters (version INTEGER NOT NULL, session INTEGER NOT NULL, change INTEGER NOT NULL);
INSERT INTO counters VALUES (0, 0, 0);
CREATE TABLE changes (slot INTEGER PRIMARY KEY, change INTEGER NOT NULL, owner TEXT NOT NULL, paths TEXT NOT NULL);
"""
_CREATION: Final = f"""
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
{_TABLES}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
FILE_LOST: Final = Metric(
    "forebay_metadata_file_lost",
    "1 from when the SQLite file was removed or replaced under the broker: it commits nothing any more",
    aggregation="max",
)
_BESIDE: Final = ("-wal", "-shm")


def ensure_file(path: Path, *, unique_name: str) -> None:
    """Create the file with its schema if there is none; of several creators one wins and the others use its file.

    Raise `Unavailable` if it cannot be created.
    """
    draft = path.with_name(f".{path.name}.{unique_name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return
        try:
            with contextlib.closing(_connect(draft, mode="rwc", busy_timeout_s=0)) as connection:
                connection.executescript(_CREATION)
            # A link either makes the whole file appear or finds another one there: nobody sees a half-made schema.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            _sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(f"cannot create the metadata file: {reason_of(error)}: path={str(path)!r}") from error


def check_format(path: Path) -> None:
    """Raise `IncompatibleFormat` for a newer format and `Unavailable` for what is no file of ours; change nothing."""
    what = f"path={str(path)!r}"
    if path.is_dir():
        raise Unavailable(f"the metadata file is a folder: {what}")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        raise Unavailable(
            f"no permission to write the metadata file or its folder as uid {os.geteuid()}: make both writable, "
            f"or choose another with metadata.url: {what}"
        )
    try:
        with contextlib.closing(_connect(path, mode="ro", busy_timeout_s=OPENING_TIMEOUT_S)) as connection:
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise Unavailable(f"cannot read the metadata file: {reason_of(error)}: {what}") from error
    if application_id != APPLICATION_ID:
        raise Unavailable(f"not a metadata file of forebay, use another path: {what} application_id={application_id:#x}")
    if version > FORMAT:
        raise IncompatibleFormat(
            f"this data directory was written by format {version}; this program knows up to format {FORMAT}: "
            f"use a newer forebay or another directory, nothing was changed: {what}"
        )


def open_writer(path: Path) -> sqlite3.Connection:
    """The connection that commits: every COMMIT is durable before it returns. Once open it waits for no lock."""
    # fullfsync: on macOS a plain fsync leaves the data in the drive's cache; elsewhere it means nothing.
    return _open(path, "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON; PRAGMA busy_timeout = 0;")


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads, beside writers of this and other processes.

    It waits for nobody, with one exception: when a process was killed in the middle of a commit, for the few milliseconds
    in which another repairs the log.
    """
    return _open(path, f"PRAGMA query_only = ON; PRAGMA busy_timeout = {REPAIR_MS};")


def reason_of(error: OSError | sqlite3.Error) -> str:
    """The cause without the path, which the caller knows better."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class DatabaseFiles:
    """Made before the database is opened: what lies there afterwards may be another file than was opened. May be asked from any thread.

    A file that was removed or replaced takes commits as before, and all of them are gone with the process. The database, its log (`-wal`)
    and the index of that (`-shm`) stay the same files for as long as one store has them open: SQLite removes the last two only when the
    last one closes.
    """

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


def _open(path: Path, settings: str) -> sqlite3.Connection:
    connection = _connect(path, mode="rw", busy_timeout_s=OPENING_TIMEOUT_S)
    try:
        # The file says so itself, but for a copy that VACUUM INTO made: without a log readers would wait for writers.
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"its journal mode is {mode!r} and cannot be made 'wal'")
        # The first read takes the lock that says "in use"; until then the last one who closes may lock everybody out for a moment.
        connection.execute("SELECT version FROM counters").fetchall()
        connection.executescript(f"PRAGMA cache_size = -{CACHE_KIB}; {settings}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, *, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    # One task at a time uses a connection, but a pool may run its calls on any of its threads.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _identity(name: str) -> tuple[int, int]:
    """One that is open keeps its own: no other file gets it meanwhile."""
    found = os.stat(name)
    return found.st_dev, found.st_ino
