"""What is offered is used: settings are read, metrics are counted, and every API has its tests and its second opinion."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from broker.protocol import apis
from broker.protocol.apis import Api
from process.settings.reference import SETTINGS
from tests.architecture.dead_code import Source, sources
from tests.architecture.vain import uncounted, unread
from tests.kit.recorded_answers import ANSWERS, read

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("forebay", "broker", "compactor", "process", "storage", "runtime")
UNIT: Final = ROOT / "tests" / "unit" / "broker" / "handlers"

READ_BY_SETTINGS_ALONE: Final = {
    "http.log_api": "judged together with http.listen (process/settings/model.py)",
    "http.insecure": "judged together with http.listen where settings are loaded (process/settings/model.py)",
}
WITHOUT_UNIT_FILE: Final[dict[str, str]] = {}
WITHOUT_SECOND_OPINION: Final[dict[str, str]] = {}
"""APIs by name, and why they need none."""


@cache
def processes() -> list[Source]:
    """Not when this file is imported: every worker of a run imports it, and one runs the tests."""
    return list(sources(ROOT, PACKAGES, generated={"wire_pb2.py"}))


def unit_tests(api: Api) -> list[str]:
    """The names of the test functions of its unit file; its handler is `broker/handlers/<domain>/<api>.py`."""
    domain, _, module = api.module.partition(".")
    path = UNIT / domain / f"test_{module}.py"
    functions = ast.walk(ast.parse(path.read_text() if path.exists() else ""))
    names = [node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in names if name.startswith("test_")]


def unprobed(api: Api, probes: list[tuple[str, int]]) -> list[int]:
    """Its served versions that no probe asks."""
    return [version for version in range(api.served_minimum, api.maximum + 1) if (api.name, version) not in probes]


def test_every_setting_is_read_by_the_program() -> None:
    found = unread(SETTINGS, [source for source in processes() if not source.module.startswith("process.settings")])

    assert sorted(found - READ_BY_SETTINGS_ALONE.keys()) == [], "nobody reads them: delete the setting, or say above who does"
    assert sorted(READ_BY_SETTINGS_ALONE.keys() - found) == []


def test_every_metric_is_bound_and_counted() -> None:
    assert sorted(uncounted(processes())) == [], "declared, and never bound or never counted: operators would see 0, or nothing, for ever"


def test_every_api_has_a_unit_file() -> None:
    found = {api.name for api in apis.APIS if not unit_tests(api)}

    assert sorted(found - WITHOUT_UNIT_FILE.keys()) == [], "tests/unit/broker/handlers/<domain>/test_<api>.py has no test, or is not there"
    assert sorted(WITHOUT_UNIT_FILE.keys() - found) == []


def test_every_version_of_every_api_has_a_second_opinion() -> None:
    asked = [(words[0], int(words[1])) for words in (probe.partition(":")[0].split() for probe in read(ANSWERS.read_text()))]
    found = {f"{api.name} {unprobed(api, asked)}": api.name for api in apis.APIS if unprobed(api, asked)}

    assert len(asked) > 1_000
    assert [said for said, name in found.items() if name not in WITHOUT_SECOND_OPINION] == [], "add a probe to tests/compat/second_opinion"
    assert sorted(WITHOUT_SECOND_OPINION.keys() - found.values()) == []


def source(text: str, module: str = "a.b") -> Source:
    return Source(module, ast.parse(text))


def test_a_setting_that_is_only_spelt_or_written_is_not_read() -> None:
    using = [source("settings.kafka.listeners\nhttp.listen\nkafka.rack = 1\n'kafka.leader'\nbroker.rack")]

    assert unread(["kafka.listeners", "http.listen", "kafka.rack", "kafka.leader"], using) == {"kafka.rack", "kafka.leader"}


DECLARED: Final = "from runtime.telemetry import Metric\nSENT: Final = Metric('forebay_sent_total', 'Sent.')\n"


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n def __init__(self, telemetry):\n  self._sent = telemetry.counter(SENT)\n def send(self):\n  self._sent.inc()",
        "def send(telemetry):\n telemetry.counter(SENT).labels('x').inc()",
        "def opened(telemetry):\n return Sender(sent=telemetry.counter(SENT))",
    ],
)
def test_a_metric_that_is_kept_and_looked_at_is_counted(text: str) -> None:
    assert uncounted([source(DECLARED + text)]) == set()
    assert uncounted([source(DECLARED), source(f"from a.b import SENT\n{text}", "c")]) == set()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(SENT.name)",
        "class A:\n def __init__(self, telemetry):\n  self._sent = telemetry.counter(SENT)",
        "class A:\n def __init__(self, telemetry):\n  self._sent = telemetry.counter(SENT).labels('x')\n  self._other.inc()",
    ],
)
def test_a_metric_that_is_only_declared_or_only_bound_is_not_counted(text: str) -> None:
    assert uncounted([source(DECLARED + text)]) == {"a.b SENT"}
