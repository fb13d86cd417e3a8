"""The parent of the brokers that tests start: it imports what a broker has imported when it is ready, once, and forks for every request.

In the child `python -m forebay` begins as in a process that was made for it, only that its modules are there already. What a broker imports
after it is ready (handlers, their messages) it still imports itself, because that may hold its event loop; so it does with gRPC and the
clients of S3, whose threads do not survive a fork. There is one thread here and no event loop.

Standard input is a socket to the tests (tests/kit/forked.py). Its end of file ends this process, and that all it has forked.

tests → parent   {"arguments": […], "environ": {…}, "cwd": …} with three descriptors: standard output, standard error, where its end is told
parent → tests   the process id with one descriptor, its pidfd; where its end is told, in time, the exit code or -signal
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Final

from forebay.imports import import_without_extras

IMPORTED: Final = (
    "forebay.cli",
    "broker.assembly",
    "forebay.processes.serve",
    "forebay.processes.link",
    "storage.metadata.sqlite.store",
    "storage.objects.disk",
    "process.http.server",
)
"""With all that these import."""
REQUEST_BYTES_MAX: Final = 128 * 1024
_STANDARD_INPUT: Final = 0
_PR_SET_PDEATHSIG: Final = 1

_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Job:
    """What a process that was just forked is to run: `python -m forebay` with these arguments."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str


def jobs(control: socket.socket) -> Job | None:
    """Fork for every request. Returns in each child, its streams in place; in the parent, with None, when the tests are gone."""
    ends: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler there must be, or nothing is written into `wake`
    signal.set_wakeup_fd(wake)
    parent = os.getpid()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, REQUEST_BYTES_MAX)
                    _tell_ends(ends)
                    continue
                request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 3)
                if not request:
                    return None
                output, errors, end = descriptors
                job = Job(**json.loads(request))
                assert len(os.listdir("/proc/self/task")) == 1, "only the thread that forks lives on in the child"
                pid = os.fork()
                if pid:
                    os.close(output)
                    os.close(errors)
                    ends[pid] = end
                    _tell_started(control, pid)
                    continue
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (woken, wake, end, *ends.values(), control.detach()):
                    os.close(descriptor)
                _become(job, output, errors, parent)
                return job


def _become(job: Job, output: int, errors: int, parent: int) -> None:
    """What a process would be that was started for this job; only that it does not outlive its parent."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    assert nothing == _STANDARD_INPUT
    for stream, descriptor in ((1, output), (2, errors)):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(job.cwd)
    os.environ.clear()
    os.environ.update(job.environ)
    sys.path[0] = job.cwd
    sys.argv[1:] = job.arguments


def _tell_started(control: socket.socket, pid: int) -> None:
    handle = os.pidfd_open(pid)
    try:
        socket.send_fds(control, [str(pid).encode()], [handle])
    except OSError:
        return  # the tests are gone; the end of file says so, too
    finally:
        os.close(handle)


def _tell_ends(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        end = ends.pop(pid)
        try:
            os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
        except BrokenPipeError:
            pass  # nobody asks any more
        finally:
            os.close(end)


def import_what_a_broker_has() -> None:
    """When it is ready, and no more."""
    import_without_extras()
    for name in IMPORTED:
        importlib.import_module(name)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this
    import_what_a_broker_has()
    gc.collect()
    gc.freeze()  # what nobody writes to stays shared, and the collector would
    if jobs(socket.socket(fileno=_STANDARD_INPUT)) is not None:
        runpy.run_module("forebay", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
