import io
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from runtime import logs
from runtime.log_lines import FAILED, LINES_PER_WINDOW, WINDOW_S
from runtime.logs import LINES_DROPPED, SHARE, Rarely
from runtime.telemetry import Telemetry
from tests.kit.process_log import restored_log

WITHIN_S = 30.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Later:
    """Timers that a test lets pass."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.delays_s: list[float] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> "Later":
        self.delays_s.append(delay_s)
        self.due.append(call)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def pass_by(self) -> None:
        self.due.pop()()


class StoppedClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 0


def events_in(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def dropped(telemetry: Telemetry) -> dict[str, float]:
    samples = [sample for metric in telemetry.registry.collect() for sample in metric.samples if sample.name == LINES_DROPPED.name]
    return {sample.labels["reason"]: sample.value for sample in samples}


def test_json_is_one_object_per_line_whoever_logs() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    structlog.get_logger("broker").info("kafka listening", port=9092, nested={"a": b"x"})
    logging.getLogger("asyncio").warning("slow call: %s", "x", extra={"seconds": 3})

    ours, theirs = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (ours["event"], ours["port"], ours["level"], ours["logger"]) == ("kafka listening", 9092, "info", "broker")
    assert ours["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["seconds"], theirs["level"], theirs["logger"]) == ("slow call: x", 3, "warning", "asyncio")


def test_an_exception_is_a_field_of_its_line() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger("x").exception("failed")

    assert json.loads(out.getvalue())["exception"].endswith("ValueError: boom")


def test_auto_is_console_on_a_terminal_and_json_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()

    logs.configure(format="auto", level="info", stream=terminal)
    structlog.get_logger("x").info("ready", seconds=1)
    logs.configure(format="auto", level="info", stream=file)
    structlog.get_logger("x").info("ready", seconds=1)

    assert "\x1b[" in terminal.getvalue()
    assert json.loads(file.getvalue())["seconds"] == 1


def test_a_console_that_is_no_terminal_has_no_colours_and_tracebacks_show_no_variables() -> None:
    out = io.StringIO()
    logs.configure(format="console", level="info", stream=out)
    secret = str(6 * 7) * 10

    try:
        raise ValueError(len(secret))
    except ValueError:
        structlog.get_logger("x").exception("failed")

    assert "\x1b[" not in out.getvalue()
    assert secret not in out.getvalue()


def test_events_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="warning", stream=out)

    structlog.get_logger("x").info("quiet")
    logging.getLogger("x").info("quiet")
    structlog.get_logger("x").warning("loud")

    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud"]


def test_what_libraries_find_worth_telling_at_every_start_is_not_told() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    logging.getLogger("aiobotocore.credentials").info("Found credentials in environment variables.")
    logging.getLogger("aiobotocore.credentials").warning("Refreshing credentials failed.")

    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["Refreshing credentials failed."]


def test_what_happens_often_is_said_at_once_and_then_rarely_with_a_count() -> None:
    said: list[int] = []
    later = Later()
    rarely = Rarely(said.append, later=later, every_s=10.0)

    rarely.happened()
    at_once = list(said)
    for _ in range(500):
        rarely.happened()
    within = list(said)
    later.pass_by()
    after = list(said)
    later.pass_by()
    assert not later.due, "nothing happens, nothing waits"
    rarely.happened()

    assert (at_once, within, after, said) == ([1], [1], [1, 500], [1, 500, 1])
    assert set(later.delays_s) == {10.0}


def test_what_was_not_said_yet_is_said_in_the_end() -> None:
    said: list[int] = []
    later = Later()
    rarely = Rarely(said.append, later=later)
    for _ in range(3):
        rarely.happened()
    rarely.stop()
    rarely.stop()

    assert said == [1, 2]
    assert not later.due


def test_what_a_client_sent_is_cut() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    long = "x" * 32_000
    structlog.get_logger("x").info(
        "e", client_id=long, cause=long, short="y" * 1_024, raw=bytes(5_000), many=[long] * 50, deep={"a": {"b": long}}
    )
    logging.getLogger("x").info("said %s", long)

    ours, theirs = events_in(out)
    assert ours["client_id"] == "x" * 256 + "… 31744 characters cut"
    assert ours["cause"] == "x" * 1_024 + "… 30976 characters cut"
    assert ours["short"] == "y" * 1_024
    assert ours["raw"].endswith("… 3976 bytes cut")
    assert len(ours["many"]) < 20
    assert ours["many"][-1] == f"… {50 - len(ours['many']) + 1} more"
    assert ours["deep"]["a"]["b"] == ours["cause"]
    assert theirs["event"].endswith("… 30981 characters cut")


def test_of_a_long_traceback_both_ends_are_kept() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    try:
        raise ValueError("a" * 100_000 + "the end")
    except ValueError:
        structlog.get_logger("x").exception("failed")

    (event,) = events_in(out)
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith("the end")
    assert "characters cut …" in event["exception"]
    assert len(event["exception"]) < 16_384 + 50


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("not now")


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else "the middle"


cyclic: list[object] = []
cyclic.append(cyclic)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        10**5_000,
        "\udcff\x00\n\u2028",
        {(1, 2): 3, None: {4}},
        b"\xff",
        memoryview(b"ab"),
        nested(100),
        cyclic,
        ValueError("x"),
        Unshowable(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_logged_is_a_line_of_json(value: object) -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    structlog.get_logger("x").info("said", value=value)
    structlog.get_logger("x").info("said", value="next")

    first, second = [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().split("\n")[:-1]]
    assert first["event"] == ("line_not_rendered" if isinstance(value, Unshowable) else "said")
    assert second["value"] == "next"


def test_what_a_library_logs_wrongly_is_a_line_all_the_same() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)

    logging.getLogger("lib").warning("%d", "not a number")  # noqa: PLE1205, RUF100

    (event,) = events_in(out)
    assert (event["event"], event["logger"], event["error"]) == ("line_not_rendered", "lib", "TypeError")
    assert event["kind"].startswith("lib test_logs.py:")


def test_on_a_console_what_a_client_sent_is_one_line_and_moves_no_cursor() -> None:
    out = io.StringIO()
    logs.configure(format="console", level="info", stream=out)

    structlog.get_logger("x").info("e", client_id="a\nINFO forged", cause="\x1b[2J\x9bm")
    logging.getLogger("lib").warning("a\x1b[2J\nb")

    ours, *theirs = out.getvalue().splitlines()
    assert ours.isprintable()
    assert r"cause='\x1b[2J\x9bm' client_id='a\nINFO forged'" in ours
    assert [line.isprintable() for line in theirs] == [True, True], "who writes the program may use lines"


def test_a_kind_that_is_said_too_often_is_left_out_counted_and_told_when_its_window_ends() -> None:
    out, clock, later, telemetry = io.StringIO(), StoppedClock(), Later(), Telemetry()
    log = logs.configure(format="json", level="info", stream=out, clock=clock, later=later)

    for number in range(LINES_PER_WINDOW + 50):
        structlog.get_logger("connection").warning("bad", number=number)
        logging.getLogger("asyncio").warning("task %s was lost", number)
    log.count_with(telemetry)
    structlog.get_logger("connection").warning("bad", number=0)
    structlog.get_logger("connection").warning("other")
    within = events_in(out)
    clock.now_s += WINDOW_S
    later.pass_by()
    structlog.get_logger("connection").warning("bad", number=1)

    assert len(within) == 2 * LINES_PER_WINDOW + 1
    assert dropped(telemetry) == {SHARE: 101}
    assert later.delays_s == [WINDOW_S]
    ours, theirs, next_one = events_in(out)[len(within) :]
    assert (ours["event"], ours["level"], ours["reason"], ours["count"], ours["kind"]) == (
        "log_lines_dropped",
        "warning",
        SHARE,
        51,
        "connection bad",
    )
    assert theirs["count"] == 50
    assert theirs["kind"].startswith("asyncio test_logs.py:")
    assert next_one["number"] == 1


def test_what_was_left_out_is_said_when_the_log_closes() -> None:
    out, later = io.StringIO(), Later()
    log = logs.configure(format="json", level="info", stream=out, clock=StoppedClock(), later=later)
    for _ in range(LINES_PER_WINDOW + 3):
        structlog.get_logger("x").info("e")

    log.close()
    structlog.get_logger("x").info("late")

    assert events_in(out)[-1]["count"] == 3
    assert not later.due


def test_to_a_descriptor_lines_are_written_beside_whoever_logs(tmp_path: Path) -> None:
    telemetry = Telemetry()
    with (tmp_path / "log").open("w") as out:
        log = logs.configure(format="json", level="info", stream=out)
    log.count_with(telemetry)
    structlog.get_logger("x").info("first")
    log.write_line("as it is")
    log.flush(WITHIN_S)

    first, second = (tmp_path / "log").read_text().splitlines()
    assert json.loads(first)["event"] == "first"
    assert second == "as it is"
    assert not dropped(telemetry)
    log.close()


def test_a_new_configuration_closes_the_log_before_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as out:
        logs.configure(format="json", level="info", stream=out)
    structlog.get_logger("x").info("first")
    logs.configure(format="json", level="info", stream=io.StringIO())
    structlog.get_logger("x").info("second")

    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["event"] == "first"


def test_a_process_without_standard_error_logs_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry()
    monkeypatch.setattr("sys.stderr", None)

    logs.configure(format="auto", level="info").count_with(telemetry)
    structlog.get_logger("x").info("e")

    assert dropped(telemetry) == {FAILED: 1}


def test_a_reader_that_is_gone_ends_nothing() -> None:
    telemetry = Telemetry()
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as out:
        log = logs.configure(format="json", level="info", stream=out)
    log.count_with(telemetry)
    os.close(read_end)

    for _ in range(5):
        structlog.get_logger("x").info("e")
    log.flush(WITHIN_S)
    log.close()

    assert dropped(telemetry) == {FAILED: 5}


@pytest.fixture
def _hooks_as_they_were() -> Iterator[None]:
    before = sys.excepthook, sys.unraisablehook, threading.excepthook
    yield
    sys.excepthook, sys.unraisablehook, threading.excepthook = before
    logging.captureWarnings(capture=False)


class Failing:
    def __del__(self) -> None:
        raise ValueError("in a destructor")


def fail() -> None:
    raise ValueError("in a thread")


@pytest.mark.usefixtures("_hooks_as_they_were")
def test_what_python_would_say_by_itself_is_logged() -> None:
    out = io.StringIO()
    logs.configure(format="json", level="info", stream=out)
    logs.log_uncaught()

    thread = threading.Thread(target=fail, name="lost")
    thread.start()
    thread.join()
    Failing()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    sys.excepthook(ValueError, ValueError("in the end"), None)

    of_thread, of_destructor, of_warning, of_process = events_in(out)
    assert (of_thread["event"], of_thread["in_thread"]) == ("uncaught", "lost")
    assert of_thread["exception"].endswith("ValueError: in a thread")
    assert of_destructor["exception"].endswith("ValueError: in a destructor")
    assert "DeprecationWarning: old" in of_warning["event"]
    assert of_process["exception"] == "ValueError: in the end"


def test_a_system_that_allows_no_thread_more_keeps_nobody_from_logging() -> None:
    def later(delay_s: float, call: Callable[[], None]) -> Later:
        raise RuntimeError("can't start new thread")

    out = io.StringIO()
    log = logs.configure(format="json", level="info", stream=out, later=later)
    for _ in range(LINES_PER_WINDOW + 2):
        structlog.get_logger("x").info("e")
    log.close()

    assert events_in(out)[-1]["count"] == 2


def test_a_command_in_the_process_of_the_tests_leaves_the_log_of_the_next_test_alone() -> None:
    with restored_log():
        log = logs.configure(format="json", level="error", stream=io.StringIO())
        assert log in logging.getLogger().handlers
        assert structlog.is_configured()

    assert log not in logging.getLogger().handlers
    assert not structlog.is_configured()
    with structlog.testing.capture_logs() as logged:
        structlog.get_logger("next").info("said")
    assert [line["event"] for line in logged] == ["said"]
