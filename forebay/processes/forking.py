"""The parent of the workers, a process of its own: it imports what a broker needs, once, and forks a worker whenever the supervisor asks.

It has one thread and no event loop, opens no store and imports neither gRPC nor obstore, whose threads do not survive a fork. Standard
input is a socket to the supervisor; its end of file ends this process, and no worker: each of them watches a link of its own.

supervisor → parent   {"assignments": [key=value, …], "accepted": {option: bool}} with two descriptors: the worker's link and its output
parent → supervisor   one JSON object per line: {"started": pid}, and of each worker that ended {"ended": pid, "code": exit code or -signal}
"""

import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

REQUEST_BYTES_MAX: Final = 64 * 1024
_STANDARD_INPUT: Final = 0


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What a process that was just forked is to do."""

    assignments: list[str]
    accepted: dict[str, bool]


def jobs(control: socket.socket, *, after_first: Callable[[], None]) -> WorkerJob | None:
    """Fork for every request. Returns in each child, its standard streams in place; in the parent, with None, when the supervisor is gone.

    `after_first` is called in the parent when it has forked once.
    """
    has_forked = False
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler there must be, or nothing is written into `wake`
    signal.set_wakeup_fd(wake)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, REQUEST_BYTES_MAX)
                    _report_ended(control)
                    continue
                request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 2)
                if not request:
                    return None
                link, output = descriptors
                assert threading.active_count() == 1, "only the thread that forks lives on in the child"
                pid = os.fork()
                if pid:
                    os.close(link)
                    os.close(output)
                    _tell(control, {"started": pid})
                    if not has_forked:
                        has_forked = True
                        after_first()
                    continue
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (woken, wake, control.detach()):
                    os.close(descriptor)
                _become(link, output)
                return WorkerJob(**json.loads(request))


def _become(link: int, output: int) -> None:
    """A session of its own: a terminal's Ctrl-C reaches the supervisor alone, which then stops its workers in order."""
    os.setsid()
    os.dup2(link, _STANDARD_INPUT)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(link)
    os.close(output)


def _report_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(control, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(control: socket.socket, message: dict[str, int]) -> None:
    try:
        control.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return  # the supervisor is gone; the end of file says so, too


def _share() -> None:
    """What is loaded stays shared with the workers as long as nobody writes to it, which the collector would."""
    gc.collect()
    gc.freeze()


def main() -> int:
    from forebay.imports import clash, import_without_extras

    # `python -m` looks into the working directory first, which the command that started this may not.
    if reason := clash():
        sys.exit(reason)

    import_without_extras()
    from broker.assembly import open_broker
    from forebay.processes.link import SupervisorLink
    from forebay.processes.serve import serve
    from process.settings.loading import load
    from process.settings.model import Accepted

    def load_the_rest() -> None:
        import process.http.server  # noqa: F401 - worker 0 serves Kafka's clients first, and loads this beside that

        _share()

    _share()
    job = jobs(socket.socket(fileno=_STANDARD_INPUT), after_first=load_the_rest)
    if job is None:
        return 0
    loaded = load(file=Path(os.devnull), environ=os.environ, assignments=job.assignments)
    return serve(loaded, open_broker=partial(open_broker, accepted=Accepted(**job.accepted)), link=SupervisorLink())


if __name__ == "__main__":
    sys.exit(main())
