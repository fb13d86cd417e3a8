"""What a process has used so far, from /proc: CPU of all its threads, the share of its first one, and its greatest resident size."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from bench.results import KIB

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12
"""Places in /proc/PID/stat behind the name in parentheses (proc(5) counts them 14 and 15)."""
_LISTENING: Final = "0A"
LOOK_EVERY_S: Final = 0.02


class WrongProcess(Exception):
    """The metered process is not the one that listens on the port that is driven."""


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds. `loop_s` is that part of them the first thread took, which is where an event loop runs."""

    user_s: float
    system_s: float
    loop_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s

    def __sub__(self, earlier: Self) -> "Used":
        return Used(self.user_s - earlier.user_s, self.system_s - earlier.system_s, self.loop_s - earlier.loop_s)


def used(pid: int) -> Used:
    """Threads that have ended are counted in the total."""
    user_s, system_s = _times(Path(f"/proc/{pid}/stat"))
    return Used(user_s, system_s, sum(_times(Path(f"/proc/{pid}/task/{pid}/stat"))))


def peak_rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB
    raise WrongProcess(f"no resident size: pid={pid}")


class PeakMemory:
    """The most that a process which ends by itself had resident, looked at until it is gone.

    What `wait4` says of it is no less than what its parent had when it was started.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_done = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="peak-memory")
        self.rss_bytes = 0

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._is_done.wait(LOOK_EVERY_S):
            try:
                self.rss_bytes = max(self.rss_bytes, peak_rss_bytes(self._pid))
            except (OSError, WrongProcess):
                return


def check_listens(pid: int, port: int) -> None:
    """Raise `WrongProcess` unless `pid`, and nobody else, listens on the TCP port."""
    sockets = {f"socket:[{inode}]" for listened, inode in _listening() if listened == port}
    holders = {int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit() and _holds(process, sockets)}
    if holders != {pid}:
        raise WrongProcess(f"port {port} is listened on by {sorted(holders)}, metered is {pid}")


def listening_ports(pid: int) -> list[int]:
    """TCP ports the process listens on, in order."""
    held = {os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()}
    return sorted(port for port, inode in _listening() if f"socket:[{inode}]" in held)


def _times(stat: Path) -> tuple[float, float]:
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[_UTIME]) / _TICKS_PER_S, int(fields[_STIME]) / _TICKS_PER_S


def _listening() -> set[tuple[int, str]]:
    """Ports that are listened on, and the inodes of the sockets."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                found.add((int(fields[1].rpartition(":")[2], 16), fields[9]))
    return found


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        return any(os.readlink(descriptor) in sockets for descriptor in (process / "fd").iterdir())
    except OSError:
        return False  # it ended, or it is somebody else's
