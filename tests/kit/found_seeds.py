"""Where the search for a wrong broker begins: at the seed that found it last.

Which seed finds a fault changes with every turn of the loop that the code takes. A search that begins far before it takes minutes, so the
seeds are kept in a file, and `pytest -k near tests/simulation/test_negative_controls.py --renew-seeds` writes it anew after such a change.
The searches that begin at the first seed (slow tier) show that no seed was picked.
"""

import json
from pathlib import Path
from typing import Final

import pytest

FILE: Final = Path(__file__).parents[1] / "simulation" / "found_at.json"
FOUND_AT: Final = "found at"
"""The property of a test's report that holds the name of what was sought and the seed that found it."""
FAR: Final = 4
"""Seeds below need no entry."""


def read() -> dict[str, int]:
    """First seed to try, by the name of what is sought; those not named begin at 1."""
    found: dict[str, int] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--renew-seeds", action="store_true", help=f"write the seeds that found wrong brokers to {FILE.name}")


def register(config: pytest.Config) -> None:
    if config.option.renew_seeds and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Renewing())


class _Renewing:
    """A plugin of the process that hears of all tests."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._found.update(value for name, value in report.user_properties if name == FOUND_AT)

    def pytest_sessionfinish(self) -> None:
        found = {name: seed for name, seed in sorted((read() | self._found).items()) if seed >= FAR}
        FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
