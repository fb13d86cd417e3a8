"""Tables of the documents that come from code: `python -m forebay.reference` writes them, and a test compares.

`FEATURES` are those of four systems that this one continues: a leaderless log in Python (batches of many partitions in one object, order by
compare-and-set, spoken to by HTTP), Pravega, Waltz and laminarmq. docs/internals/seeds.md is made of them, and a test looks.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from forebay.commands.generate.dashboards import CLIENT_METRICS, dashboards
from forebay.commands.generate.rules import alerts, recordings
from process.settings.reference import SETTINGS
from runtime.telemetry import Metric
from storage.catalog.topic_configs import TOPIC_CONFIGS, ConfigEffect

LATER: Final = "later"
LOG: Final = "leaderless log"
PRAVEGA: Final = "Pravega"
WALTZ: Final = "Waltz"
LAMINARMQ: Final = "laminarmq"
PACKAGES: Final = ("broker", "compactor", "process", "runtime", "storage")
_PART: Final = re.compile(r"<!-- generated: ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)

DOCS: Final = Path(__file__).parent.parent / "docs"

PAGES: Final = (
    DOCS / "reference" / "settings.md",
    DOCS / "reference" / "metrics.md",
    DOCS / "guides" / "monitor.md",
    DOCS / "reference" / "topic-configs.md",
    DOCS / "internals" / "seeds.md",
)


class SeedFeature(NamedTuple):
    """`home`: a command (`forebay …`), a setting (its key), a route of the HTTP API (`GET /…`) or a file; LATER, or empty if it is nowhere.
    `note` then says why.
    """

    system: str
    name: str
    home: str
    note: str = ""


FEATURES: Final = (
    SeedFeature(LOG, "batches of many partitions in one object", "storage/formats/wal.py"),
    SeedFeature(LOG, "slices of an object by partition", "storage/formats/wal.py"),
    SeedFeature(LOG, "batching by size", "storage.flush_bytes"),
    SeedFeature(LOG, "batching by time", "storage.flush_interval"),
    SeedFeature(LOG, "order by compare-and-set", "storage/log/commit.py"),
    SeedFeature(LOG, "recovery of commits without an answer", "storage/log/decide.py"),
    SeedFeature(LOG, "sparse index", "storage/log/index.py"),
    SeedFeature(LOG, "look-up by ceiling", "storage/metadata/port.py"),
    SeedFeature(LOG, "scan of entries", "storage/log/index.py"),
    SeedFeature(LOG, "ranged GET", "storage/objects/port.py"),
    SeedFeature(LOG, "partitions begin when first used", "storage/log/partition.py"),
    SeedFeature(LOG, "partitions fail alone", "storage/log/partition.py"),
    SeedFeature(LOG, "cache of the tail", "storage/log/partition.py"),
    SeedFeature(LOG, "long poll in the broker", "broker/delayed_fetch.py"),
    SeedFeature(LOG, "one GET for all readers of a blob", "storage/cache/blocks.py"),
    SeedFeature(LOG, "back-pressure by memory", "storage.max_buffer_bytes"),
    SeedFeature(LOG, "detection of gaps", "forebay storage verify"),
    SeedFeature(LOG, "the log as a library", "forebay/log.py"),
    SeedFeature(LOG, "fence of a partition", "storage/log/trim.py"),
    SeedFeature(LOG, "roles of brokers", "broker.roles"),
    SeedFeature(LOG, "cache that processes share", "storage.cache_dir"),
    SeedFeature(LOG, "compaction once", "forebay compactor run-once"),
    SeedFeature(LOG, "compaction as a service", "forebay compactor serve"),
    SeedFeature(LOG, "claims of compactors", "compactor/records.py"),
    SeedFeature(LOG, "recovery of compactions", "compactor/compaction.py"),
    SeedFeature(LOG, "targets of compaction", "compactor.segment_bytes"),
    SeedFeature(LOG, "pace of compaction", "compactor.io_bytes_per_s"),
    SeedFeature(LOG, "produce by HTTP", "POST /produce"),
    SeedFeature(LOG, "consume by HTTP", "POST /consume"),
    SeedFeature(LOG, "health", "GET /health"),
    SeedFeature(LOG, "index key and object of an append", "storage/log/index.py"),
    SeedFeature(LOG, "metrics as JSON", "GET /metrics.json"),
    SeedFeature(LOG, "metrics for Prometheus", "GET /metrics"),
    SeedFeature(LOG, "the bill as it runs up", "forebay cost now"),
    SeedFeature(LOG, "dashboards", "forebay generate grafana"),
    SeedFeature(LOG, "load scenarios", "forebay bench load"),
    SeedFeature(LOG, "folder of a run, samples, reconciliation", "forebay bench load"),
    SeedFeature(LOG, "page that finds what is slow", "docs/guides/slow.md"),
    SeedFeature(LOG, "routing manifest", "forebay/commands/bench/load/routing.py"),
    SeedFeature(LOG, "a stack to watch", "forebay bench load watch"),
    SeedFeature(LOG, "settings from the environment", "process/settings/loading.py"),
    SeedFeature(LOG, "session timeout of the metadata store as a setting", LATER),
    SeedFeature(PRAVEGA, "controllers without state", "broker/cluster/leadership.py"),
    SeedFeature(PRAVEGA, "administration by HTTP", "POST /api/v1/topics"),
    SeedFeature(PRAVEGA, "truncation", "forebay topic trim"),
    SeedFeature(PRAVEGA, "retention by time and size", "compactor/retention.py"),
    SeedFeature(PRAVEGA, "reader groups", "broker/groups/coordinator.py"),
    SeedFeature(PRAVEGA, "reset of a group", "forebay group reset-offsets"),
    SeedFeature(PRAVEGA, "membership and failover", "broker/cluster/ownership.py"),
    SeedFeature(PRAVEGA, "cache of metadata", "storage/catalog/topics.py"),
    SeedFeature(PRAVEGA, "transactions", LATER),
    SeedFeature(PRAVEGA, "tables of keys and values", LATER, "compacted topics keep the last value of a key today"),
    SeedFeature(PRAVEGA, "scopes and tags", LATER),
    SeedFeature(PRAVEGA, "sealed streams", LATER),
    SeedFeature(PRAVEGA, "split, merge and auto-scale", LATER, "Kafka's clients know partitions that are added, and no others"),
    SeedFeature(PRAVEGA, "stream cuts", LATER, "a group's committed offsets are one"),
    SeedFeature(PRAVEGA, "retention by consumption", LATER),
    SeedFeature(PRAVEGA, "watermarks", LATER),
    SeedFeature(PRAVEGA, "container map", "", "nothing owns a partition: any broker serves it"),
    SeedFeature(WALTZ, "ids of requests", "broker/protocol/wire.py"),
    SeedFeature(WALTZ, "checksums", "storage/recordbatch.py"),
    SeedFeature(WALTZ, "clients that connect again", "forebay/kafka_client"),
    SeedFeature(WALTZ, "back-pressure", "broker/admission.py"),
    SeedFeature(WALTZ, "optimistic locks", LATER),
    SeedFeature(WALTZ, "high-water mark and flush for clients", LATER),
    SeedFeature(WALTZ, "feed of headers alone", LATER),
    SeedFeature(WALTZ, "mount of a partition", LATER),
    SeedFeature(WALTZ, "generation of a partition", "", "there is no leader to be replaced; the manifest's version tells writers apart"),
    SeedFeature(LAMINARMQ, "log by index", "storage/log/index.py"),
    SeedFeature(LAMINARMQ, "segments", "storage/formats/segment.py"),
    SeedFeature(LAMINARMQ, "expiry", "compactor/retention.py"),
    SeedFeature(LAMINARMQ, "several back ends", "storage.url"),
    SeedFeature(LAMINARMQ, "the log as a library", "forebay/log.py"),
    SeedFeature(LAMINARMQ, "membership", "storage/catalog/brokers.py"),
    SeedFeature(LAMINARMQ, "rendezvous hashing", "broker/cluster/leadership.py"),
    SeedFeature(LAMINARMQ, "HTTP", "broker/http/routes.py"),
    SeedFeature(LAMINARMQ, "streaming append", "broker/http/line_stream.py"),
    SeedFeature(LAMINARMQ, "classes of record sizes", "forebay bench load"),
    SeedFeature(LAMINARMQ, "weights of brokers", LATER),
    SeedFeature(LAMINARMQ, "requests to cores", LATER, "`forebay serve --workers` has a process for each"),
    SeedFeature(LAMINARMQ, "flame graphs", LATER),
    SeedFeature(LAMINARMQ, "replication and redirection", "", "the object store keeps the copies, and no broker is the wrong one"),
    SeedFeature(LAMINARMQ, "truncation of the tail", "", "what was acknowledged stays"),
)


def feature_rows() -> list[tuple[str, ...]]:
    """System, feature, home and note of each, as the page has them."""
    return [(one.system, one.name, _shown_home(one.home), one.note) for one in FEATURES]


def _shown_home(home: str) -> str:
    return "none" if not home else home if home == LATER else f"`{home}`"


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
        (
            f"`{one.name}`",
            ", ".join(f"`{label}`" for label in one.labels),
            one.aggregation or "sum",
            f"{one.documentation}{f' (also as `{one.former_name}` until 0.2)' if one.former_name else ''}",
        )
        for one in metrics()
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
