"""What happens between BEGIN IMMEDIATE and COMMIT: requests, sessions, counters. Plain SQL, on whatever thread commits."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from storage.limits import METADATA_VALUE_BYTES_MAX, WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata import key_order
from storage.metadata.port import ABSENT, Delete, DeleteRange, KeyChange, OpResult, Put, Status, WriteOp
from storage.metadata.sqlite_owners import Liveness
from storage.metadata.sqlite_schema import CHANGES_KEPT

CHANGE_PATHS_MAX: Final = 1_000
"""Paths that one commit leaves for the subscribers of other processes; what is above is a missing hint."""

_PUT: Final = """
INSERT INTO records (k, version, session, value) VALUES (?, ?, ?, ?)
ON CONFLICT (k) DO UPDATE SET version = excluded.version, session = excluded.session, value = excluded.value
"""
_REPLACE: Final = "UPDATE records SET version = ?, value = ? WHERE k = ? AND version = ? AND session IS NULL"
_ADD: Final = "INSERT INTO records (k, version, session, value) VALUES (?, ?, NULL, ?) ON CONFLICT (k) DO NOTHING"
_CURRENT: Final = "SELECT version, session FROM records WHERE k = ?"

_KINDS: Final = (Put, Delete, DeleteRange)


class EncodedOp(NamedTuple):
    """One op of a request, checked and encoded before it is queued: what is wrong with it is its own caller's business."""

    place: int
    """Its index in the request."""
    op: WriteOp
    start: bytes
    end: bytes


class Prepared(NamedTuple):
    steps: list[EncodedOp]
    """In the order of application."""
    size_bytes: int


def prepare(ops: Sequence[WriteOp]) -> Prepared:
    """Puts, then deletes, then range deletes."""
    assert len(ops) <= WRITE_REQUEST_OPS_MAX, f"too many ops in one request: {len(ops)}"
    steps: list[EncodedOp] = []
    size_bytes = 0
    for kind in _KINDS:
        for place, op in enumerate(ops):
            if type(op) is not kind:
                continue
            match op:
                case Put():
                    assert len(op.value) <= METADATA_VALUE_BYTES_MAX, f"value too large: key={op.key.path!r} bytes={len(op.value)}"
                    step = EncodedOp(place, op, key_order.encode(op.key.path), b"")
                    size_bytes += len(op.value)
                case Delete():
                    step = EncodedOp(place, op, key_order.encode(op.key.path), b"")
                case DeleteRange():
                    step = EncodedOp(place, op, *key_order.range_bounds(op.start.path, op.end))
            size_bytes += len(step.start) + len(step.end)
            steps.append(step)
    assert size_bytes <= WRITE_REQUEST_BYTES_MAX, f"request too large: bytes={size_bytes} ops={len(ops)}"
    return Prepared(steps, size_bytes)


class Transaction:
    """One open transaction. `changed` and `ended_sessions` are for those who want to hear of it after the commit."""

    def __init__(self, connection: sqlite3.Connection, liveness: Liveness) -> None:
        self._connection = connection
        self._liveness = liveness
        self._version, self._session, self._change = connection.execute("SELECT version, session, change FROM counters").fetchall()[0]
        self._counters_read = (self._version, self._session)
        self._alive: dict[int, bool] = {}
        self.changed: list[KeyChange] = []
        self.ended_sessions: list[int] = []

    def apply(self, steps: Sequence[EncodedOp]) -> tuple[OpResult, ...]:
        """One request; the results in the order of its ops."""
        results: dict[int, OpResult] = {}
        for step in steps:
            match step.op:
                case Put():
                    results[step.place] = self._put(step.op, step.start)
                case Delete():
                    results[step.place] = self._delete(step.op, step.start)
                case DeleteRange():
                    results[step.place] = self._delete_range(step.start, step.end)
        return tuple(results[place] for place in range(len(steps)))

    def open_session(self, *, timeout_ms: int) -> tuple[int, int]:
        """Its id, and when its time began."""
        self._session += 1
        now_ms = self._liveness.now_ms()
        self._connection.execute(
            "INSERT INTO sessions (id, owner, boot, renewed_ms, timeout_ms) VALUES (?, ?, ?, ?, ?)",
            (self._session, self._liveness.owners.own_id, self._liveness.boot_id, now_ms, timeout_ms),
        )
        return self._session, now_ms

    def renew_session(self, session_id: int) -> int | None:
        """When its time began anew; None if it is dead. Whoever keeps alive also looks after the dead."""
        self.end_dead_sessions()
        if not self._is_alive(session_id):
            return None
        now_ms = self._liveness.now_ms()
        self._connection.execute("UPDATE sessions SET renewed_ms = ? WHERE id = ?", (now_ms, session_id))
        return now_ms

    def end_session(self, session_id: int) -> None:
        """The session and its records go; no error if it is gone already."""
        rows = self._connection.execute("SELECT k FROM records WHERE session = ?", (session_id,)).fetchall()
        self._connection.execute("DELETE FROM records WHERE session = ?", (session_id,))
        self._connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        self._alive[session_id] = False
        self.changed += [(key_order.decode(row[0]), None) for row in rows]
        self.ended_sessions.append(session_id)

    def end_sessions(self, session_ids: Iterable[int]) -> None:
        for session_id in session_ids:
            self.end_session(session_id)

    def end_dead_sessions(self) -> None:
        self.end_sessions(self._liveness.dead_sessions(self._connection))

    def finish(self) -> None:
        """Write what the whole batch shares, before COMMIT."""
        if self.changed:
            self._change += 1
            paths = "\n".join([path for path, _ in self.changed[:CHANGE_PATHS_MAX]])
            self._connection.execute(
                "INSERT OR REPLACE INTO changes (slot, change, owner, paths) VALUES (?, ?, ?, ?)",
                (self._change % CHANGES_KEPT, self._change, self._liveness.owners.own_id, paths),
            )
        if self.changed or self._counters_read != (self._version, self._session):
            self._connection.execute(
                "UPDATE counters SET version = ?, session = ?, change = ?", (self._version, self._session, self._change)
            )

    def _put(self, op: Put, key: bytes) -> OpResult:
        version = self._version + 1
        if op.session is not None or op.expected_version is None or not self._put_plainly(op, key, version):
            current = self._current(key)
            if op.expected_version is not None and op.expected_version != current:
                return OpResult(Status.UNEXPECTED_VERSION, None)
            if op.session is not None and not self._is_alive(op.session):
                return OpResult(Status.SESSION_DOES_NOT_EXIST, None)
            self._connection.execute(_PUT, (key, version, op.session, op.value))
        self._version = version
        self.changed.append((op.key.path, version))
        return OpResult(Status.OK, version)

    def _put_plainly(self, op: Put, key: bytes, version: int) -> bool:
        """The usual case in one statement: no session before or after, and the condition holds."""
        if op.expected_version == ABSENT:
            return self._connection.execute(_ADD, (key, version, op.value)).rowcount == 1
        return self._connection.execute(_REPLACE, (version, op.value, key, op.expected_version)).rowcount == 1

    def _delete(self, op: Delete, key: bytes) -> OpResult:
        current = self._current(key)
        if op.expected_version is not None and op.expected_version != current:
            return OpResult(Status.UNEXPECTED_VERSION, None)
        if current == ABSENT:
            return OpResult(Status.KEY_NOT_FOUND, None)
        self._connection.execute("DELETE FROM records WHERE k = ?", (key,))
        self.changed.append((op.key.path, None))
        return OpResult(Status.OK, None)

    def _delete_range(self, start: bytes, end: bytes) -> OpResult:
        rows = self._connection.execute("SELECT k FROM records WHERE k >= ? AND k < ?", (start, end)).fetchall()
        self._connection.execute("DELETE FROM records WHERE k >= ? AND k < ?", (start, end))
        self.changed += [(key_order.decode(row[0]), None) for row in rows]
        return OpResult(Status.OK, None)

    def _current(self, key: bytes) -> int:
        """The version of the record, or ABSENT; a record of a dead session goes first."""
        rows = self._connection.execute(_CURRENT, (key,)).fetchall()
        if not rows:
            return ABSENT
        version, session_id = rows[0]
        if session_id is not None and not self._is_alive(session_id):
            self.end_session(session_id)
            return ABSENT
        assert isinstance(version, int)
        return version

    def _is_alive(self, session_id: int) -> bool:
        alive = self._alive.get(session_id)
        if alive is None:
            alive = self._alive[session_id] = self._liveness.is_alive(self._connection, session_id)
        return alive
