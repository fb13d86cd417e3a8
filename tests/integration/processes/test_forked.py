"""A broker that was forked for a test (tests/kit/forked.py) is what it would be in a process that was made for it."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.forked import Forked, Parent, run
from tests.kit.serving import ROOT, Served, events, serving

WITHIN_S = 60.0
EXIT_USAGE = 2
IN_MEMORY = ["--set=storage.url=memory://", "--set=metadata.url=memory://", "--set=kafka.listeners=PLAINTEXT://127.0.0.1:0"]
QUIET = ["serve", "--config", os.devnull, "--log-format", "json", "--set=http.listen=127.0.0.1:0", *IN_MEMORY]
SERVES_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from tests.kit.serving import serving

with serving(Path(sys.argv[1])) as served:
    print(type(served.process).__name__, served.pid, flush=True)
    time.sleep(60)
"""
_BY_OTHERS = {"__main__", "structlog", "kio", "kio.static", "kio.static.primitive"}
"""Python names only what a statement imports, and these are imported by a call (forebay/imports.py)."""
_IMPORTED = re.compile(r"^import time:\s*\d+ \|\s*\d+ \| *(\S+)$", re.MULTILINE)


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent(os.environ)
    yield parent
    parent.close()


def broker_of(parent: Parent, folder: Path) -> Forked:
    """One that may not be ready yet."""
    with (folder / "broker.log").open("wb") as log:
        return parent.fork(QUIET, environ=os.environ, cwd=folder, stdout=log.fileno(), stderr=log.fileno())


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], WITHIN_S)[0])


def configuration(served: Served) -> dict[str, object]:
    """What it says of its settings, but for what is of one broker alone."""
    (said,) = (event for event in events(served.log_path) if event["event"] == "config")
    folder = str(served.log_path.parent)
    return {key: str(value).replace(folder, "<folder>") for key, value in said.items() if key not in {"seconds", "timestamp"}}


def place(served: Served) -> dict[str, object]:
    """What the system gave it, and what it does about signals."""
    process = Path(f"/proc/{served.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    streams = [Path(os.readlink(process / "fd" / str(number))).name.partition("-")[0] for number in range(3)]
    return {
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "group": os.getpgid(served.pid) == os.getpgid(0),
        "session": os.getsid(served.pid) == os.getsid(0),
        "in its folder": (process / "cwd").readlink() == served.log_path.parent,
        "niceness": os.getpriority(os.PRIO_PROCESS, served.pid),
        "limits": (process / "limits").read_text(),
        "streams": streams,
        "files": _kinds_of_files(served),
    }


def _kinds_of_files(served: Served) -> set[str]:
    """Those that are open, without files of /proc, which a broker reads now and then."""
    names = set()
    for one in Path(f"/proc/{served.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.add(os.readlink(one))
    folder = str(served.log_path.parent)
    return {"<folder>" if name.startswith(folder) else name.partition(":")[0] for name in names if not name.startswith("/proc/")}


def test_nobody_can_tell_it_from_one_with_a_process_of_its_own(tmp_path: Path) -> None:
    settings = {"broker.rack": "a b"}
    environ = {"FOREBAY_KAFKA__DEFAULT_PARTITIONS": "3"}

    with (
        serving(tmp_path / "forked", settings=settings, environ=environ) as forked,
        serving(tmp_path / "made", settings=settings, environ=environ, afresh=True) as made,
    ):
        kinds = type(forked.process), type(made.process)
        said, place_of_it = configuration(forked), place(forked)
        expected, place_expected = configuration(made), place(made)

    assert kinds == (Forked, subprocess.Popen)
    assert said == expected
    assert (said["kafka.default_partitions"], said["broker.rack"]) == ("3", "a b")
    assert place_of_it == place_expected


def test_a_broker_has_nothing_of_the_one_before_it(tmp_path: Path) -> None:
    with serving(tmp_path / "one", environ={"FOREBAY_KAFKA__DEFAULT_PARTITIONS": "3"}) as one:
        before = configuration(one)
    with serving(tmp_path / "two") as two:
        after = configuration(two)

    assert "kafka.default_partitions" in before
    assert "kafka.default_partitions" not in after


def test_where_imports_could_differ_a_process_is_made_for_it(tmp_path: Path) -> None:
    with serving(tmp_path, environ={"PYTHONASYNCIODEBUG": "0"}) as served:
        assert isinstance(served.process, subprocess.Popen)


def test_what_is_imported_before_a_fork_a_broker_has_imported_when_it_is_ready(tmp_path: Path) -> None:
    """What it imports later, while it serves, must count as its own doing."""
    code = "import sys; from tests.kit.forking import import_what_a_broker_has as i; i(); print(*sys.modules)"
    with serving(tmp_path, environ={"PYTHONPROFILEIMPORTTIME": "1"}) as served:
        until_ready, _, _ = served.log_path.read_text().partition('"event": "ready"')

    before = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=WITHIN_S)
    imported = {name for name in before.stdout.split() if name.partition(".")[0] not in {*sys.stdlib_module_names, "tests"}}
    assert "broker.handlers.log.produce" in imported
    later = imported - set(_IMPORTED.findall(until_ready)) - _BY_OTHERS
    assert {name for name in later if "cython" not in name} == set()  # the runtime of compiled modules comes without an import


def test_its_exit_code_and_its_words_are_told(tmp_path: Path) -> None:
    ended = run([*QUIET, "--set=storage.url=nonsense://"], environ=os.environ, cwd=tmp_path, timeout_s=WITHIN_S)

    assert (ended.returncode, ended.stdout) == (EXIT_USAGE, "")
    assert "cannot_serve" in ended.stderr


def test_one_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run(QUIET, environ=os.environ, cwd=tmp_path, timeout_s=0.1)


def test_signals_and_ends_are_as_of_any_process(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert isinstance(served.process, Forked)
        assert served.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(0.01)
        served.process.send_signal(signal.SIGSTOP)
        served.process.send_signal(signal.SIGCONT)
        assert served.terminate() == 0
        assert (served.process.poll(), served.process.wait(), served.process.returncode) == (0, 0, 0)
        served.process.kill()  # there is nobody

    with serving(tmp_path) as served:
        served.kill9()
        assert served.process.returncode == -signal.SIGKILL


def test_brokers_end_with_the_one_that_forked_them(parent: Parent, tmp_path: Path) -> None:
    broker = broker_of(parent, tmp_path)
    pidfd = os.pidfd_open(broker.pid)

    os.kill(parent.pid, signal.SIGKILL)

    assert ended(pidfd)
    with pytest.raises(ChildProcessError, match="nobody knows"):
        broker.wait(WITHIN_S)
    with pytest.raises(OSError):
        broker_of(parent, tmp_path)
    assert not parent.is_usable
    os.close(pidfd)


def test_all_end_with_the_tests_however_these_do(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVES_UNTIL_KILLED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        kind, pid = tests.stdout.readline().split()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        pidfds = [os.pidfd_open(int(pid)), os.pidfd_open(parent)]
        tests.kill()

    assert (kind, parent != tests.pid) == ("Forked", True)
    for pidfd in pidfds:
        assert ended(pidfd)
        os.close(pidfd)
