"""The supervisor in a process of its own, over workers that are small programs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from process.stopping import EXIT_INTERRUPTED
from runtime.clock import SystemClock

FAKE = Path(__file__).with_name("fake_serve.py")
WITHIN_S = 30.0

_clock = SystemClock()

Start = Callable[..., "Supervised"]


class Supervised:
    """`forebay serve --workers` with fakes; `events` are the log lines that were read."""

    def __init__(self, folder: Path, acts: tuple[str, ...], assignments: tuple[str, ...]) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), *acts, "--", "log.format=json", *assignments],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def lines(self) -> Iterator[str]:
        assert self.process.stderr is not None
        return iter(self.process.stderr.readline, "")

    def read_until(self, event: str, **facts: object) -> dict[str, Any]:
        for line in self.lines():
            self.events.append(json.loads(line))
            if {"event": event, **facts}.items() <= self.events[-1].items():
                return self.events[-1]
        raise AssertionError(f"{event} {facts} never came; before it {self.events}")

    def rest(self) -> list[str]:
        return [line.rstrip("\n") for line in self.lines()]

    def exit_code(self) -> int:
        return self.process.wait(WITHIN_S)

    def pids(self, number: int) -> list[int]:
        """Of the lives of a worker."""
        files = sorted(self.folder.glob(f"{number}.*.pid"), key=lambda path: int(path.name.split(".")[1]))
        return [int(path.read_text()) for path in files]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(*acts: str, assignments: tuple[str, ...] = ()) -> Supervised:
        started.append(Supervised(tmp_path, acts, assignments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()
        for path in one.folder.glob("*.pid"):
            wait_gone(int(path.read_text()))


def wait_gone(pid: int) -> None:
    give_up_s = _clock.monotonic_s() + WITHIN_S
    while is_running(pid):
        assert _clock.monotonic_s() < give_up_s, f"process {pid} goes on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        # An orphan that has ended may be a zombie until somebody collects it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_all_are_started_and_a_signal_drains_them_all(supervised: Start) -> None:
    served = supervised("behave", "behave", "behave")
    served.read_until("all_workers_ready")
    pids = [served.pids(number) for number in range(3)]

    served.process.send_signal(signal.SIGTERM)
    stopped = served.read_until("supervisor_stopped")

    assert served.exit_code() == stopped["exit_code"] == 0
    assert [len(lives) for lives in pids] == [1, 1, 1]
    ended = [event for event in served.events if event["event"] == "worker_stopped"]
    assert sorted((event["worker"], event["manner"]) for event in ended) == [(number, "exit code 0") for number in range(3)]


def test_a_full_disk_under_the_log_ends_no_worker(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        supervisor = subprocess.Popen(
            [sys.executable, str(FAKE), "behave", "behave", "--", "log.format=json"], cwd=tmp_path, stderr=full, start_new_session=True
        )
    try:
        give_up_s = _clock.monotonic_s() + WITHIN_S
        while not list(tmp_path.glob("1.*.pid")):  # worker 1 starts when worker 0 has said all it has to say
            assert supervisor.poll() is None, f"the supervisor ended: {supervisor.returncode}"
            assert _clock.monotonic_s() < give_up_s
            time.sleep(0.01)
        supervisor.terminate()

        # As after any signal: 0, or 130 if it came before worker 1 was ready. A worker that the disk had ended would be begun again.
        assert supervisor.wait(WITHIN_S) in (0, EXIT_INTERRUPTED)
        assert sorted(path.name for path in tmp_path.glob("*.pid")) == ["0.0.pid", "1.0.pid"]
    finally:
        supervisor.kill()
        supervisor.wait()


def test_an_interrupt_drains_as_well(supervised: Start) -> None:
    served = supervised("behave", "behave")
    served.read_until("all_workers_ready")

    served.process.send_signal(signal.SIGINT)

    assert served.read_until("supervisor_stopping")["signal"] == "SIGINT"
    assert served.exit_code() == 0


def test_the_exit_code_is_the_worst_of_the_workers(supervised: Start) -> None:
    served = supervised("behave", "drain badly")
    served.read_until("all_workers_ready")

    served.process.send_signal(signal.SIGTERM)

    assert served.exit_code() == 5


def test_a_worker_that_is_killed_is_started_again(supervised: Start) -> None:
    served = supervised("behave", "behave")
    served.read_until("all_workers_ready")

    os.kill(served.pids(1)[0], signal.SIGKILL)
    died = served.read_until("worker_died")
    served.read_until("worker_ready", worker=1, life=1)
    served.process.send_signal(signal.SIGTERM)

    assert (died["worker"], died["manner"], died["restart_in_s"]) == (1, "killed by SIGKILL", 0.5)
    assert served.exit_code() == 0
    assert [len(served.pids(number)) for number in range(2)] == [1, 2]


def test_a_worker_that_cannot_start_again_is_tried_later_and_later_and_says_why(supervised: Start) -> None:
    served = supervised("refuse later")
    served.read_until("all_workers_ready")

    os.kill(served.pids(0)[0], signal.SIGKILL)
    pauses = [served.read_until("worker_died") for _ in range(3)]
    served.process.send_signal(signal.SIGTERM)

    assert [event["restart_in_s"] for event in pauses] == [0.5, 1.0, 2.0]
    assert [event.get("cause") for event in pauses] == [None, "the folder is on fire", "the folder is on fire"]
    assert served.exit_code() == 0


@pytest.mark.parametrize("acts", [("refuse", "behave"), ("behave", "refuse", "behave")])
def test_a_start_error_stops_all_with_its_code_and_one_message(supervised: Start, acts: tuple[str, ...]) -> None:
    served = supervised(*acts)

    lines = served.rest()

    assert served.exit_code() == 3
    last = json.loads(lines[-1])
    assert (last["event"], last["level"], last["exit_code"]) == ("cannot_serve", "error", 3)
    assert (last["worker"], last["message"]) == (acts.index("refuse"), "the folder is on fire")
    assert sum("on fire" in line for line in lines) == 1


def test_worker_0_starts_alone_so_that_what_is_wrong_with_all_is_said_once(supervised: Start) -> None:
    served = supervised("refuse", "refuse", "refuse")

    (line,) = [line for line in served.rest() if "on fire" in line]
    assert json.loads(line)["worker"] == 0
    assert served.pids(1) == []


def test_a_worker_that_ends_without_a_word_before_it_was_ready_stops_all(supervised: Start) -> None:
    served = supervised("behave", "crash at first")

    last = json.loads(served.rest()[-1])
    assert (last["worker"], last["message"]) == (1, "It ended before it was ready (exit code 7); its lines above say more.")
    assert served.exit_code() == 7


def test_a_signal_during_the_start_interrupts_it(supervised: Start) -> None:
    served = supervised("start for ever", "behave")
    served.read_until("worker_said", line="begun")

    served.process.send_signal(signal.SIGTERM)

    assert served.exit_code() == 130
    assert served.pids(1) == []


def test_a_second_signal_ends_everything_at_once(supervised: Start) -> None:
    served = supervised("never drain", "never drain")
    served.read_until("all_workers_ready")
    pids = served.pids(0) + served.pids(1)

    served.process.send_signal(signal.SIGTERM)
    served.read_until("supervisor_stopping")
    served.process.send_signal(signal.SIGTERM)

    assert served.exit_code() == 130
    for pid in pids:
        wait_gone(pid)


def test_workers_that_miss_the_deadline_are_killed(supervised: Start) -> None:
    served = supervised("never drain", "behave", assignments=("shutdown.deadline=1s", "shutdown.drain=0ms"))
    served.read_until("all_workers_ready")

    served.process.send_signal(signal.SIGTERM)

    assert served.read_until("shutdown_deadline_passed")["workers"] == [0]
    assert served.exit_code() == 128 + signal.SIGKILL


def test_a_supervisor_that_is_killed_leaves_no_orphan(supervised: Start) -> None:
    served = supervised("behave", "never drain")
    served.read_until("all_workers_ready")
    pids = served.pids(0) + served.pids(1)

    served.process.kill()

    assert len(pids) == 2
    for pid in pids:
        wait_gone(pid)


def test_lines_of_workers_say_whose_they_are(supervised: Start) -> None:
    served = supervised("behave", "behave")

    served.read_until("all_workers_ready")
    served.process.send_signal(signal.SIGTERM)
    served.read_until("supervisor_stopped")

    said = {(event["worker"], event["line"]) for event in served.events if event["event"] == "worker_said"}
    assert said == {(0, "hello from 0"), (1, "hello from 1")}


def test_on_a_console_what_stops_all_is_plain_text(supervised: Start) -> None:
    served = supervised("behave", "refuse", assignments=("log.format=console",))

    assert served.rest()[-1] == "worker 1: the folder is on fire"
    assert served.exit_code() == 3


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (("storage.url=memory://", "metadata.url=memory://"), "--workers 2 needs stores that several processes can share"),
        (("kafka.listeners=PLAINTEXT://127.0.0.1:65535",), "worker 1 would need port 65536"),
        (("storage.max_buffer_bytes=64GiB", "storage.cache_bytes=1024GiB"), "do not fit into the"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(supervised: Start, assignments: tuple[str, ...], words: str) -> None:
    served = supervised("behave", "behave", assignments=assignments)

    lines = served.rest()

    last = json.loads(lines[-1])
    assert last["event"] == "cannot_serve"
    assert words in last["message"]
    assert served.exit_code() == 2
    assert not list(served.folder.iterdir())


def test_workers_go_on_when_nobody_reads_their_words_any_more(supervised: Start) -> None:
    served = supervised("behave", "behave")
    served.read_until("all_workers_ready")
    assert served.process.stderr is not None

    served.process.stderr.close()
    os.kill(served.pids(1)[0], signal.SIGKILL)
    give_up_s = _clock.monotonic_s() + WITHIN_S
    while len(served.pids(1)) < 2:
        assert _clock.monotonic_s() < give_up_s, "the worker was not started again"
        time.sleep(0.01)

    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
