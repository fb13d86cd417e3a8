"""A real broker in a process of its own: `forebay serve` on ports the system assigns, its log kept, its memory to be looked at.

    with serving(tmp_path) as served:
        produce_to(served.bootstrap)
        served.kill9()
    with serving(tmp_path, kafka_port=served.kafka_port) as again: ...

Several brokers may serve one folder. A test that fails shows the end of the log.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock
from tests.kit import forked

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
READY_WITHIN_S = 90.0
STOP_WITHIN_S = 60.0
ANSWER_WITHIN_S = 30.0
ASK_EVERY_S = 0.02
LAST_LINES = 20
LOOP_HELD_S_MAX = 0.25
"""What a broker does between two looks at its clients. Its own watch tells (process/loop_watch.py), less what a busy machine adds."""
WAIT_ERROR_SHARE_MAX = 0.1
"""A share of the time that it waited for a processor. The kernel's count of it and the clock of the loop are read one after the other."""

_clock = SystemClock()
_reasons_to_hold: list[str] = []


@dataclass
class Served:
    """A broker that was ready. It may have ended since, by a test's hand or its own."""

    kafka_port: int
    http_port: int
    process: forked.Process
    log_path: Path

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill9(self) -> None:
        """No goodbye: as if the machine were gone."""
        self.process.kill()
        self.process.wait(STOP_WITHIN_S)

    def terminate(self) -> int:
        """SIGTERM, and the exit code. Raise TimeoutExpired if the broker does not end."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_WITHIN_S)

    def metrics(self) -> dict[str, float]:
        """Every series of /metrics.json, up to a second old, as `name` or `name{label="value",…}`, labels by name."""
        status, body = get(self.http_port, "/metrics.json")
        assert status == http.client.OK, body
        return {_series(sample["name"], sample["labels"]): sample["value"] for sample in json.loads(body)["series"]}

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return self._status_bytes("VmRSS")

    def peak_rss_bytes(self) -> int:
        """The most that was ever resident."""
        return self._status_bytes("VmHWM")

    def events(self) -> list[dict[str, object]]:
        """The broker's log so far."""
        return events(self.log_path)

    def _status_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{name} is not in /proc/{self.pid}/status")


@contextlib.contextmanager
def loop_may_be_held(reason: str) -> Iterator[None]:
    """Brokers that end meanwhile may have held their event loop: what `pytest.mark.holds_loop(reason)` says of a test."""
    _reasons_to_hold.append(reason)
    try:
        yield
    finally:
        _reasons_to_hold.remove(reason)


def assert_loop_was_free(log_path: Path) -> None:
    """No turn of the event loop took longer than LOOP_HELD_S_MAX, from when the broker was ready."""
    told = [event for event in events(log_path) if event.get("event") == "event_loop_blocked"]
    held = [event for event in told if _seconds(event) > LOOP_HELD_S_MAX + WAIT_ERROR_SHARE_MAX * _seconds(event, "waited_for_cpu_seconds")]
    assert not held or _reasons_to_hold, f"the broker held its event loop: {json.dumps(held, indent=1)}"


IN_OBJECTS: Final = {"storage.early_bytes_per_second": "0B"}
"""Settings with which small batches go into objects, too."""


@contextlib.contextmanager
def serving(
    data_dir: Path | None,
    *,
    kafka_port: int | None = None,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    open_files_max: int | None = None,
    options: Sequence[str] = (),
    entering: Sequence[str] = (),
    afresh: bool = False,
) -> Iterator[Served]:
    """A broker over `data_dir` (None: over memory) that is ready. Leaving stops it: in order if all went well, at once otherwise.

    `environ` is added to the environment of this process, without what that says of settings. `open_files_max`: the broker's hard limit.
    `options`: of the command line, beside the settings. `entering`: words before the command, which `exec` what follows them.
    `afresh`: in a process that is made for it and shares no memory with others; else it may be forked (tests/kit/forked.py).
    The ports are read off its log, which is why `log.level` has to stay `info` or below.
    """
    with contextlib.ExitStack() as closing:
        folder = data_dir or Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="forebay-")))
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, log_name = tempfile.mkstemp(prefix="broker-", suffix=".log", dir=folder)
        os.close(descriptor)
        log_path = Path(log_name)
        given = _assignments(data_dir, kafka_port, settings or {})
        process = _spawn(given, log_path, environ or {}, open_files_max, options, entering, afresh=afresh)
        try:
            served = _wait_ready(process, log_path)
            yield served
            if served.is_alive:
                assert served.terminate() == 0, "the broker did not stop in order"
            assert_loop_was_free(log_path)
        except BaseException:
            sys.stderr.write(f"the end of {log_path.name}:\n{last_lines(log_path)}\n")
            raise
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(STOP_WITHIN_S)


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def events(log_path: Path) -> list[dict[str, object]]:
    """The whole lines of a log that are events; what is no JSON (a traceback, half a line) is left out."""
    found = []
    for line in log_path.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def last_lines(log_path: Path) -> str:
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-LAST_LINES:])


def _assignments(data_dir: Path | None, kafka_port: int | None, settings: Mapping[str, str]) -> list[str]:
    stores = (
        {"storage.url": "memory://", "metadata.url": "memory://"}
        if data_dir is None
        else {"storage.url": f"file://{data_dir.resolve()}/objects", "metadata.url": f"sqlite:///{data_dir.resolve()}/meta.db"}
    )
    given = {
        "kafka.listeners": f"PLAINTEXT://{HOST}:{kafka_port or 0}",
        "http.listen": f"{HOST}:0",
        "shutdown.drain": "0ms",
        "shutdown.deadline": "20s",
        "compactor.run": "false",  # a process more
        **stores,
        **settings,
    }
    return [f"{key}={value}" for key, value in given.items()]


def _spawn(
    assignments: list[str],
    log_path: Path,
    environ: Mapping[str, str],
    open_files_max: int | None,
    options: Sequence[str],
    entering: Sequence[str],
    *,
    afresh: bool,
) -> forked.Process:
    arguments = ["serve", "--config", os.devnull, "--log-format", "json", *options]
    for assignment in assignments:
        arguments += ["--set", assignment]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_"))}
    environment.update(environ)
    with log_path.open("wb") as log:
        if not entering and open_files_max is None:
            return forked.start(arguments, environ=environment, cwd=log_path.parent, stdout=log, stderr=log, afresh=afresh)
        command = [sys.executable, "-m", "forebay", *arguments]
        if open_files_max is not None:
            command = ["/bin/sh", "-c", f'ulimit -n {open_files_max} && exec "$@"', "sh", *command]
        words = [*entering, *command]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=log_path.parent)


def _wait_ready(process: forked.Process, log_path: Path) -> Served:
    give_up_s = _clock.monotonic_s() + READY_WITHIN_S
    while _clock.monotonic_s() < give_up_s:
        assert process.poll() is None, f"the broker ended before it was ready: exit code {process.returncode}"
        said = {event.get("event"): event for event in events(log_path)}
        if "ready" in said:  # before, it may answer, but a signal would interrupt its start
            kafka_port, http_port = _port(said["kafka listening"]["listeners"]), _port(said["http listening"]["address"])
            if get(http_port, "/readyz")[0] == http.client.OK:
                return Served(kafka_port, http_port, process, log_path)
        time.sleep(ASK_EVERY_S)
    raise AssertionError(f"the broker was not ready within {READY_WITHIN_S:.0f} s")


def _seconds(event: Mapping[str, object], name: str = "seconds") -> float:
    return float(str(event.get(name) or 0.0))


def _port(addresses: object) -> int:
    """That of the first address."""
    return int(str(addresses).split(",")[0].rpartition(":")[2])


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + ("{" + ",".join(f'{key}="{labels[key]}"' for key in sorted(labels)) + "}" if labels else "")
