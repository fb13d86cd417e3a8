"""Runs a program of others as a child of this one: `python -m forebay.processes.tethered COMMAND…`.

Standard input is a `SupervisorLink`, which such a program would not know. When its other end is gone, or SIGTERM or SIGINT comes, the
program is ended: in order, and by force after a while. The exit code is that of the program.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

from forebay.processes.workers.link import SupervisorLink

PROGRAM_ENDS_WITHIN_S: Final = 10.0
"""Shorter than a `ChildProcess` waits for this process."""
_BY_SIGNAL: Final = 128


def tethered(command: Sequence[str]) -> list[str]:
    """The command line that runs this one."""
    return [sys.executable, "-m", "forebay.processes.tethered", *command]


def run(command: Sequence[str]) -> int:
    """Until the program ends. Raise `OSError` if it cannot be started."""
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - what our own command line names

    def wait() -> None:
        program.wait()
        is_over.set()

    waiting = threading.Thread(target=wait, name="program", daemon=True)
    waiting.start()
    SupervisorLink().watch(is_over.set)
    is_over.wait()
    program.terminate()
    waiting.join(PROGRAM_ENDS_WITHIN_S)
    program.kill()
    waiting.join()
    return program.returncode if program.returncode >= 0 else _BY_SIGNAL - program.returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
