import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from runtime import logs
from runtime.logs import Rarely


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


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
