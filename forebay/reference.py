"""Writes the tables of the documents that come from code: `python -m forebay.reference`. A test compares them."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from forebay.commands.generate.dashboards import CLIENT_METRICS, dashboards
from forebay.commands.generate.rules import alerts, recordings
from forebay.seeds import feature_rows
from process.settings.keys import SETTINGS
from runtime.telemetry import Metric
from storage.catalog.topic_configs import TOPIC_CONFIGS, ConfigEffect

DOCS: Final = Path(__file__).parent.parent / "docs"
PAGES: Final = (DOCS / "operations.md", DOCS / "topic-configs.md", DOCS / "dashboards.md", DOCS / "seeds.md")
PACKAGES: Final = ("broker", "compactor", "process", "runtime", "storage")


def metrics() -> list[Metric]:
    """Every metric that a module of the processes declares, by name."""
    modules = map(importlib.import_module, _module_names())
    declared = {value.name: value for module in modules for value in vars(module).values() if isinstance(value, Metric)}
    return [declared[name] for name in sorted(declared)]


def shown_metrics() -> dict[str, Metric]:
    """Metrics that dashboards and rules may ask for, by name: our own, and some of the Prometheus client."""
    return {metric.name: metric for metric in (*metrics(), *CLIENT_METRICS)}


def settings_table() -> str:
    rows = [(f"`{one.key}`", one.notation.name, one.default_text() or "none", one.description) for one in SETTINGS.values()]
    return _table(("Setting", "Written as", "Default", "What it is"), rows)


def metrics_table() -> str:
    rows = [
        (f"`{one.name}`", ", ".join(f"`{label}`" for label in one.labels), one.aggregation or "sum", one.documentation) for one in metrics()
    ]
    return _table(("Metric", "Labels", "Of several processes", "What it says"), rows)


def dashboards_table() -> str:
    rows = [(f"`{name}`", " · ".join(panel.title for panel in one.panels)) for name, one in dashboards(shown_metrics()).items()]
    return _table(("Dashboard", "Panels"), rows)


def alerts_table() -> str:
    rows = [(f"`{one.name}`", one.severity, one.for_, f"`{one.expression}`", one.says) for one in alerts(shown_metrics())]
    return _table(("Alert", "Severity", "For", "Expression", "What it means"), rows)


def recordings_table() -> str:
    rows = [(f"`{one.name}`", f"`{one.expression}`", one.says) for one in recordings(shown_metrics())]
    return _table(("Series", "Expression", "What it is"), rows)


def topic_configs_table(effect: ConfigEffect) -> str:
    found = [one for one in TOPIC_CONFIGS.values() if one.effect is effect]
    rows = [(f"`{one.name}`", one.type.name, f"`{one.default}`" if one.default else "empty", one.meaning) for one in found]
    is_served = effect in (ConfigEffect.ENFORCED, ConfigEffect.NOT_YET)
    return _table(("Config", "Type", "Default", "What it asks for" if is_served else "Because"), rows)


def seeds_table() -> str:
    return _table(("Of", "Feature", "Home", "Note"), feature_rows())


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings_table,
    "metrics": metrics_table,
    "dashboards": dashboards_table,
    "alerts": alerts_table,
    "recording rules": recordings_table,
    "seeds": seeds_table,
    **{f"topic configs {effect.value}": partial(topic_configs_table, effect) for effect in ConfigEffect},
}
"""The text between `<!-- generated: name -->` and `<!-- end -->`, by name."""
_PART: Final = re.compile(r"<!-- generated: ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)


def renew_page(page: str) -> str:
    """The page with its generated parts as the code has them now. Raise KeyError for one that no code makes."""
    return _PART.sub(lambda part: f"<!-- generated: {part[1]} -->\n{PARTS[part[1]]()}\n<!-- end -->", page)


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
    for file in PAGES:
        file.write_text(renew_page(file.read_text()))
