"""One process at a time, by a lock on a file: what two test runs or two calls of `make` would otherwise both do."""

import contextlib
import fcntl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock

_ASK_EVERY_S: Final = 0.1

_clock = SystemClock()


@contextlib.contextmanager
def only_one(path: Path, *, what: str, within_s: float) -> Iterator[None]:
    """Hold the lock of `path`, which ends with this process at the latest; a line on stderr says when somebody else has it.

    Raise TimeoutError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    give_up_s = _clock.monotonic_s() + within_s
    told = False
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    sys.stderr.write(f"waiting for another process: {what}\n")
                told = True
            if _clock.monotonic_s() > give_up_s:
                raise TimeoutError(f"{what} by another process did not end within {within_s:.0f} s (it holds {path})")
            time.sleep(_ASK_EVERY_S)
        yield
