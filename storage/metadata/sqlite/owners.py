"""Which opened stores on one file are alive, and so which sessions.

Every opened store is an owner: for its whole life it holds an exclusive flock on a file of its own, `<db>.owners/<ulid>`.
The kernel releases the lock when the process ends, however it ends; so an owner is dead exactly when its file is gone or
its lock can be had. A dead owner's id is never used again, so death is final.
(A forked child that goes on using a copy of the descriptor keeps its parent alive: start processes by exec.)

A session is dead when its owner is, or when its timeout has passed since it was renewed, both by the machine's clock since boot,
or when it was renewed under another boot.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime.clock import Clock
from runtime.ids import IdSource

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_JOIN_ATTEMPTS_MAX: Final = 10


def read_boot_id() -> str:
    """Names this boot of the machine; empty where the system does not say (owners' locks then tell the boots apart)."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def owners_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.owners")


class Owners:
    """The owners of one file, seen by one of them."""

    def __init__(self, folder: Path, *, ids: IdSource) -> None:
        """Become an owner. Raise OSError if the folder or the file cannot be made."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_JOIN_ATTEMPTS_MAX):
            self.own_id = ids.next_ulid()
            self._descriptor = os.open(folder / self.own_id, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            # Another store may have looked at the file between its creation and our lock, taken it for a dead one and removed it.
            if _try_lock(self._descriptor, fcntl.LOCK_EX) and os.fstat(self._descriptor).st_nlink > 0:
                return
            os.close(self._descriptor)
        raise OSError(f"no owner file could be locked in {_JOIN_ATTEMPTS_MAX} attempts")

    def is_alive(self, owner: str) -> bool:
        if owner == self.own_id:
            return True
        try:
            descriptor = os.open(self._folder / owner, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that several who look at once do not take each other for the owner.
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def remove_dead_files(self) -> None:
        """Tidy up after killed processes."""
        for name in os.listdir(self._folder):
            if not self.is_alive(name):
                (self._folder / name).unlink(missing_ok=True)

    def leave(self) -> None:
        """This owner is dead from here on."""
        (self._folder / self.own_id).unlink(missing_ok=True)
        os.close(self._descriptor)


class Liveness:
    """Judges sessions as they stand in the file. `clock`: its monotonic time must be that of the machine, as SystemClock's is."""

    def __init__(self, *, owners: Owners, clock: Clock, boot_id: str) -> None:
        self.owners = owners
        self.boot_id = boot_id
        self._clock = clock

    def now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1_000)

    def is_alive(self, connection: sqlite3.Connection, session_id: int) -> bool:
        rows = connection.execute("SELECT id, owner, boot, renewed_ms, timeout_ms FROM sessions WHERE id = ?", (session_id,)).fetchall()
        return bool(rows) and self._judge(rows[0], self.now_ms())

    def dead_sessions(self, connection: sqlite3.Connection) -> Iterator[int]:
        rows = connection.execute("SELECT id, owner, boot, renewed_ms, timeout_ms FROM sessions").fetchall()
        now_ms = self.now_ms()
        return (row[0] for row in rows if not self._judge(row, now_ms))

    def _judge(self, row: tuple[int, str, str, int, int], now_ms: int) -> bool:
        _, owner, boot, renewed_ms, timeout_ms = row
        # Renewed in the future: the machine's clock started again, in another boot.
        return boot == self.boot_id and 0 <= now_ms - renewed_ms < timeout_ms and self.owners.is_alive(owner)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
