"""Writes the tables of docs/operations.md that come from code: `python -m forebay.reference`. A test compares them."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from process.settings.keys import SETTINGS
from runtime.telemetry import Metric

PAGE: Final = Path(__file__).parent.parent / "docs" / "operations.md"
PACKAGES: Final = ("broker", "compactor", "process", "runtime", "storage")


def metrics() -> list[Metric]:
    """Every metric that a module of the processes declares, by name."""
    modules = map(importlib.import_module, _module_names())
    declared = {value.name: value for module in modules for value in vars(module).values() if isinstance(value, Metric)}
    return [declared[name] for name in sorted(declared)]


def settings_table() -> str:
    rows = [(f"`{one.key}`", one.notation.name, one.default_text() or "none", one.description) for one in SETTINGS.values()]
    return _table(("Setting", "Written as", "Default", "What it is"), rows)


def metrics_table() -> str:
    rows = [(f"`{one.name}`", ", ".join(f"`{label}`" for label in one.labels), one.documentation) for one in metrics()]
    return _table(("Metric", "Labels", "What it says"), rows)


def renewed(page: str) -> str:
    """The page with its generated parts as the code has them now."""
    for name, table in (("settings", settings_table()), ("metrics", metrics_table())):
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"no part marked {begin} in the page"
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def _module_names() -> Iterator[str]:
    for package in PACKAGES:
        yield package
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, prefix=f"{package}."):
            if not module.name.endswith("__main__"):
                yield module.name


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
