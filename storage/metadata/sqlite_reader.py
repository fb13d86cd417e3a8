"""Reads of the embedded store: each sees every commit that was acknowledged before it began, by whatever process.

A WAL reader waits for nobody and a point read costs less than handing it to a thread, so these run on the loop.
Every statement is read to its end: one left open would pin its snapshot, and later reads would see the past.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from storage.metadata import key_order
from storage.metadata.port import Key, KeyChange, Record
from storage.metadata.sqlite_owners import Liveness

_ONE: Final = "SELECT k, value, version, session FROM records WHERE k = ?"
_CEILING: Final = "SELECT k, value, version, session FROM records WHERE k >= ? ORDER BY k LIMIT 1"
_PAGE: Final = "SELECT k, value, version, session FROM records WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_PATHS: Final = "SELECT k, session FROM records WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"

Row = tuple[bytes, bytes, int, int | None]


class DeadSessionFound(Exception):
    """The answer would hold records of a dead session: end it, then read again."""


class SqliteReader:
    """Raises sqlite3.Error and `DeadSessionFound`."""

    def __init__(self, connection: sqlite3.Connection, liveness: Liveness) -> None:
        self._connection = connection
        self._liveness = liveness
        self._data_version = -1
        self._last_change = 0

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        """All of one moment."""
        if len(keys) == 1:
            return [self._get(keys[0])]
        self._connection.execute("BEGIN")
        try:
            return [self._get(key) for key in keys]
        finally:
            self._connection.execute("ROLLBACK")

    def ceiling(self, path: str, within: str) -> Record | None:
        seek, prefix = key_order.ceiling_bounds(path, within)
        rows = self._connection.execute(_CEILING, (seek,)).fetchall()
        return self._record(rows[0]) if rows and rows[0][0].startswith(prefix) else None

    def records_between(self, start: bytes, end: bytes, *, records_max: int) -> list[Record]:
        return [self._record(row) for row in self._connection.execute(_PAGE, (start, end, records_max)).fetchall()]

    def paths_between(self, start: bytes, end: bytes, *, keys_max: int) -> list[str]:
        rows = self._connection.execute(_PATHS, (start, end, keys_max)).fetchall()
        for _, session_id in rows:
            self._check(session_id)
        return [key_order.decode(encoded) for encoded, _ in rows]

    def last_version(self) -> int:
        """The last version id given out."""
        version = self._connection.execute("SELECT version FROM counters").fetchall()[0][0]
        assert isinstance(version, int)
        return version

    def skip_changes(self) -> None:
        """`foreign_changes` tells what is committed from here on."""
        self._last_change = self._connection.execute("SELECT change FROM counters").fetchall()[0][0]

    def foreign_changes(self) -> list[KeyChange]:
        """What other stores changed since the last call, without versions; incomplete when that was very much."""
        data_version = self._connection.execute("PRAGMA data_version").fetchall()[0][0]
        if data_version == self._data_version:
            return []
        rows = self._connection.execute(
            "SELECT change, paths FROM changes WHERE change > ? AND owner != ? ORDER BY change",
            (self._last_change, self._liveness.owners.own_id),
        ).fetchall()
        self._data_version = data_version
        if rows:
            self._last_change = rows[-1][0]
        return [(path, None) for _, paths in rows for path in paths.split("\n")]

    def close(self) -> None:
        self._connection.close()

    def _get(self, key: Key) -> Record | None:
        rows = self._connection.execute(_ONE, (key_order.encode(key.path),)).fetchall()
        return self._record(rows[0]) if rows else None

    def _record(self, row: Row) -> Record:
        encoded, value, version, session_id = row
        self._check(session_id)
        return Record(key_order.decode(encoded), value, version)

    def _check(self, session_id: int | None) -> None:
        if session_id is not None and not self._liveness.is_alive(self._connection, session_id):
            raise DeadSessionFound
