"""Nine dashboards as data: each panel says what it shows, in which unit, and by which expressions. Then as Grafana imports them.

`Expressions` writes PromQL over the table of metrics: a name, a label or a kind that the table does not have is an error where it is
written. A gauge is aggregated as its metric says (sum or max), a counter and a histogram by the sum of their rates.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from process.cost.prices import GIB, MONTH_S
from runtime.telemetry import Aggregation, Metric

TARGET_LABELS: Final = frozenset({"cluster", "job", "instance"})
"""Labels that a Prometheus adds: the scrape configuration gives `cluster`, if there are several."""
CLIENT_METRICS: Final[tuple[Metric, ...]] = (
    Metric("process_cpu_seconds_total", "CPU time of the process"),
    Metric("process_resident_memory_bytes", "Resident memory of the process", aggregation="sum"),
    Metric("process_open_fds", "Open files of the process", aggregation="sum"),
    Metric("process_max_fds", "Files that the process may open", aggregation="sum"),
    Metric("python_gc_collections_total", "Garbage collections", ("generation",)),
)
"""Metrics of the Prometheus client that dashboards show; every process has them."""
SHOWN_TOPICS: Final = 10
"""The topics with the most of something, in a panel by topic."""
EVERYWHERE: Final = ('cluster=~"$cluster"', 'instance=~"$instance"')
"""Matchers in each selector: `$cluster` and `$instance` are chosen above the panels."""
WINDOW: Final = "$__rate_interval"
DAY_S: Final = 86_400
SCHEMA_VERSION: Final = 38
COLUMNS: Final = 24
_SIZES: Final = {True: (6, 5), False: (12, 8)}
"""Width and height of a number, and of values over time."""
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_IDENTITY: Final = "forebay_build_info"
_LINK: Final = {
    "title": "Forebay",
    "type": "dashboards",
    "icon": "external link",
    "tooltip": "",
    "tags": ["forebay"],
    "asDropdown": True,
    "targetBlank": False,
    "includeVars": True,
    "keepTime": True,
}
_DATASOURCES: Final = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "hide": 0,
    "skipUrlSync": False,
}

MetricKind = Literal["counter", "gauge", "histogram"]

Unit = Literal["short", "bytes", "binBps", "s", "percentunit", "ops", "reqps", "currencyUSD"]
"""Names of Grafana's; bytes and bytes a second have binary prefixes."""


def kind_of(metric: Metric) -> MetricKind:
    """Tell it by the aggregation, which gauges alone have, and by the ending of the name, which counters alone have."""
    if metric.aggregation is not None:
        return "gauge"
    return "counter" if metric.name.endswith("_total") else "histogram"


@dataclass(frozen=True, slots=True)
class Expressions:
    """Makes expressions. `everywhere` is written into each selector, and `window` is the time that a rate looks back.

    A value in `where` matches as a regular expression behind `~`, and other values match behind `!`. Raise ValueError for what is not in
    the table.
    """

    table: Mapping[str, Metric]
    everywhere: tuple[str, ...] = ()
    window: str = "5m"

    def selector(self, name: str, **where: str) -> str:
        """The series of a counter or a gauge as they are scraped."""
        metric = self._metric(name)
        if kind_of(metric) == "histogram":
            raise ValueError(f"{name} is a histogram: ask for a quantile, or for how often it was observed")
        return self._selector(metric, name, where)

    def now(self, name: str, *by: str, **where: str) -> str:
        """A gauge of all processes together."""
        metric = self._metric(name, "gauge", by)
        return _aggregated(metric.aggregation or "sum", by, self._selector(metric, name, where))

    def rate(self, name: str, *by: str, window: str = "", **where: str) -> str:
        """A counter's increase per second."""
        metric = self._metric(name, "counter", by)
        return _aggregated("sum", by, f"rate({self._selector(metric, name, where)}[{window or self.window}])")

    def increase(self, name: str, *by: str, window: str, **where: str) -> str:
        """A counter's increase."""
        metric = self._metric(name, "counter", by)
        return _aggregated("sum", by, f"increase({self._selector(metric, name, where)}[{window}])")

    def growth(self, name: str, *by: str, window: str, **where: str) -> str:
        """Return an expression of a gauge's growth per second, from all its values in the window."""
        metric = self._metric(name, "gauge", by)
        return _aggregated(metric.aggregation or "sum", by, f"deriv({self._selector(metric, name, where)}[{window}])")

    def observed(self, name: str, *by: str, **where: str) -> str:
        """How often per second a histogram was observed."""
        metric = self._metric(name, "histogram", by)
        return _aggregated("sum", by, f"rate({self._selector(metric, f'{name}_count', where)}[{self.window}])")

    def quantile(self, quantile: float, name: str, *by: str, **where: str) -> str:
        """A quantile of what a histogram observed, of all processes together unless `by` has `instance`."""
        metric = self._metric(name, "histogram", by)
        rates = f"rate({self._selector(metric, f'{name}_bucket', where)}[{self.window}])"
        return f"histogram_quantile({quantile}, {_aggregated('sum', ('le', *by), rates)})"

    def _metric(self, name: str, kind: MetricKind | None = None, by: tuple[str, ...] = ()) -> Metric:
        metric = self.table.get(name)
        if metric is None:
            raise ValueError(f"there is no metric {name}")
        if kind not in (None, kind_of(metric)):
            raise ValueError(f"{name} is a {kind_of(metric)}, no {kind}")
        _check_labels(metric, by)
        return metric

    def _selector(self, metric: Metric, name: str, where: Mapping[str, str]) -> str:
        _check_labels(metric, tuple(where))
        matchers = ",".join((*self.everywhere, *(f"{label}{_matcher(value)}" for label, value in where.items())))
        return f"{name}{{{matchers}}}" if matchers else name


def _check_labels(metric: Metric, labels: tuple[str, ...]) -> None:
    for label in labels:
        if label not in TARGET_LABELS and label not in metric.labels:
            raise ValueError(f"{metric.name} has no label {label}")


def _matcher(value: str) -> str:
    operator = {"~": "=~", "!": "!="}.get(value[:1], "=")
    return f'{operator}"{value if operator == "=" else value[1:]}"'


def _aggregated(how: Aggregation, by: tuple[str, ...], what: str) -> str:
    return f"{how} by ({', '.join(by)}) ({what})" if by else f"{how}({what})"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what each of its series is called: labels stand in double braces."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`about` is shown with the title. A number shows the last value alone, and other panels show values over time."""

    title: str
    unit: Unit
    queries: tuple[Query, ...]
    about: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    title: str
    panels: tuple[Panel, ...]


def dashboards(table: Mapping[str, Metric]) -> dict[str, Dashboard]:
    """Every dashboard by its name, over the metrics of the table. Raise ValueError if one asks for what the table does not have."""
    expressions = Expressions(table, EVERYWHERE, WINDOW)
    return {name: make(expressions) for name, make in _MADE_BY.items()}


def put_per_gib(e: Expressions, *by: str, window: str = "") -> str:
    """PUTs of WAL objects, their parts included, for a GiB that producers sent."""
    puts = e.rate("forebay_s3_requests_total", *by, window=window, key="wal", request="~put|upload_.*")
    return _per_gib(e, puts, *by, window=window)


def dollars_per_month(e: Expressions, *by: str, window: str = "") -> str:
    """What requests cost, if they go on as in the window."""
    return f"{e.rate('forebay_cost_dollars_total', *by, window=window)} * {MONTH_S}"


def orphan_growth(e: Expressions, *by: str) -> str:
    """Bytes a second by which objects grow that nothing refers to."""
    return e.growth("forebay_footprint_bytes", *by, window="6h", kind="unreferenced")


def _per_gib(e: Expressions, what: str, *by: str, window: str = "") -> str:
    return f"{what} / ({e.rate('forebay_topic_bytes_total', *by, window=window, direction='in')} / {GIB})"


def _quantiles(e: Expressions, name: str, *by: str, **where: str) -> tuple[Query, ...]:
    labels = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple(Query(e.quantile(quantile, name, *by, **where), f"p{quantile * 100:.0f}{labels}") for quantile in (0.5, 0.99))


def _overview(e: Expressions) -> Dashboard:
    requests, latency = "forebay_kafka_requests_total", "forebay_kafka_request_duration_seconds"
    return Dashboard(
        "Overview",
        (
            Panel(
                "Ready", "short", (Query(e.now("forebay_ready", "job"), "{{job}}"),), "Processes whose /readyz answers 200.", is_number=True
            ),
            Panel(
                "Stores that fail",
                "short",
                (Query(e.now("forebay_store_failing", "store", "op"), "{{store}} {{op}}"),),
                "1 while no request of this kind succeeds.",
                is_number=True,
            ),
            Panel(
                "Requests to S3, a day",
                "currencyUSD",
                (Query(f"{e.rate('forebay_cost_dollars_total')} * {DAY_S}"),),
                "At the prices of cost.store, without storage.",
                is_number=True,
            ),
            Panel(
                "Unexpected errors, last hour",
                "short",
                (Query(e.increase("forebay_unexpected_errors_total", window="1h")),),
                "Each is a bug.",
                is_number=True,
            ),
            Panel("Written", "binBps", (Query(_by_topic(e, "in"), "{{topic}}"),), f"By topic, the {SHOWN_TOPICS} with the most."),
            Panel("Read", "binBps", (Query(_by_topic(e, "out"), "{{topic}}"),), f"By topic, the {SHOWN_TOPICS} with the most."),
            Panel("Produce", "s", _quantiles(e, latency, api="Produce")),
            Panel("Fetch", "s", _quantiles(e, latency, api="Fetch"), "Time that a reader at the end waits for records is in it."),
            Panel(
                "Groups behind",
                "s",
                (Query(_most(e.now("forebay_group_lag_seconds", "group")), "{{group}}"),),
                "The age of the first record that a group has not read.",
            ),
            Panel("Requests", "reqps", (Query(e.rate(requests, "api"), "{{api}}"),)),
            Panel("Requests with an error", "reqps", (Query(e.rate(requests, "api", "error", error="!NONE"), "{{api}} {{error}}"),)),
            Panel("Connections", "short", (Query(e.now("forebay_connections", "listener"), "{{listener}}"),)),
            Panel("Records", "ops", (Query(e.rate("forebay_topic_records_total", "direction"), "{{direction}}"),)),
        ),
    )


def _most(expression: str) -> str:
    return f"topk({SHOWN_TOPICS}, {expression})"


def _by_topic(e: Expressions, direction: str) -> str:
    return _most(e.rate("forebay_topic_bytes_total", "topic", direction=direction))


def _write(e: Expressions) -> Dashboard:
    stages = e.quantile(0.99, "forebay_flush_duration_seconds", "stage")
    objects, sealed = e.rate("forebay_flush_objects_total"), e.rate("forebay_flush_object_bytes_total")
    early = f"{e.rate('forebay_early_bytes_total')} / {e.rate('forebay_topic_bytes_total', direction='in')}"
    buffered = f"{e.now('forebay_request_buffer_bytes', 'instance')} / {e.now('forebay_request_buffer_limit_bytes', 'instance')}"
    return Dashboard(
        "Write path",
        (
            Panel("Stages of a flush, p99", "s", (Query(stages, "{{stage}}"),), "Wait for the flush, put of the object, commit."),
            Panel("WAL objects by trigger", "ops", (Query(e.rate("forebay_flush_objects_total", "trigger"), "{{trigger}}"),)),
            Panel("PUTs for a GiB", "short", (Query(put_per_gib(e)),), "Fewer and larger objects cost less and take longer."),
            Panel("Size of a WAL object", "bytes", (Query(f"{sealed} / {objects}"),)),
            Panel("Early share of bytes", "percentunit", (Query(early),), "What is committed before its object is stored."),
            Panel("Batches that wait for an object", "ops", (Query(e.rate("forebay_gathered_batches_total", "reason"), "{{reason}}"),)),
            Panel(
                "Early objects in memory",
                "bytes",
                (Query(e.now("forebay_early_waiting_bytes", "instance"), "{{instance}}"),),
                "Above 16 MiB the object store is slow or away. At 64 MiB producers wait for it.",
            ),
            Panel(
                "Conflicts and unknown outcomes",
                "ops",
                (Query(e.rate("forebay_commit_conflicts_total"), "conflicts"), Query(e.rate("forebay_commit_unknown_total"), "unknown")),
                "Conflicts: several brokers write to a partition.",
            ),
            Panel("Buffer ÷ bound", "percentunit", (Query(buffered, "{{instance}}"),), "From 1 on producers are slowed down."),
            Panel("Pauses for memory", "ops", (Query(e.rate("forebay_backpressure_pauses_total", "instance"), "{{instance}}"),)),
            Panel("Produce buffers", "bytes", (Query(e.now("forebay_produce_buffer_bytes", "instance"), "{{instance}}"),)),
        ),
    )


def _read(e: Expressions) -> Dashboard:
    cache = "forebay_cache_requests_total"
    return Dashboard(
        "Read path",
        (
            Panel("Cache hits", "percentunit", (Query(f"{e.rate(cache, outcome='hit')} / {e.rate(cache)}"),)),
            Panel("GETs by cause", "reqps", (Query(e.rate("forebay_s3_requests_total", "cause", request="~get|ranged_get"), "{{cause}}"),)),
            Panel("GETs", "s", _quantiles(e, "forebay_object_store_request_duration_seconds", op="get")),
            Panel("Hedged GETs", "reqps", (Query(e.rate("forebay_object_store_hedges_total", "outcome"), "{{outcome}}"),)),
            Panel(
                "Corrupt and healed",
                "ops",
                (
                    Query(e.rate("forebay_corrupt_reads_total", "cause"), "{{cause}}"),
                    Query(e.rate("forebay_recovered_reads_total"), "healed"),
                ),
                "A read that was not healed is an alarm.",
            ),
            Panel("Read ahead", "ops", (Query(e.rate("forebay_read_ahead_total", "outcome"), "{{outcome}}"),)),
            Panel(
                "Bytes",
                "binBps",
                (
                    Query(e.rate("forebay_kafka_request_bytes_total", api="Fetch", direction="out"), "to clients"),
                    Query(e.rate("forebay_s3_bytes_total", direction="out"), "from S3"),
                ),
            ),
            Panel("Replies that clients have not taken", "bytes", (Query(e.now("forebay_response_bytes", "instance"), "{{instance}}"),)),
        ),
    )


def _cache(e: Expressions) -> Dashboard:
    return Dashboard(
        "Cache",
        (
            Panel(
                "Bytes by level",
                "bytes",
                (
                    Query(e.now("forebay_tail_cache_bytes"), "last commits"),
                    Query(e.now("forebay_cache_bytes"), "blocks"),
                    Query(e.now("forebay_cache_fetching_bytes"), "being fetched"),
                ),
            ),
            Panel("Pieces by outcome", "ops", (Query(e.rate("forebay_cache_requests_total", "outcome"), "{{outcome}}"),)),
            Panel("Blocks", "bytes", (Query(e.now("forebay_cache_bytes", "instance"), "{{instance}}"),)),
            Panel(
                "Shared cache by outcome",
                "ops",
                (Query(e.rate("forebay_shared_cache_requests_total", "outcome"), "{{outcome}}"),),
                "Reads through the folder of storage.cache_dir: a miss is a GET.",
            ),
            Panel("Shared cache, blocks put", "ops", (Query(e.rate("forebay_shared_cache_puts_total", "outcome"), "{{outcome}}"),)),
            Panel(
                "Shared cache", "bytes", (Query(e.now("forebay_shared_cache_bytes"), "the largest folder"),), "On the disks of machines."
            ),
            Panel(
                "Blocks asked of the zone",
                "ops",
                (Query(e.rate("forebay_peer_cache_requests_total", "outcome"), "{{outcome}}"),),
                "Of other brokers, with storage.zone_cache. All but hit and miss are read from the store instead.",
            ),
            Panel("Read ahead", "ops", (Query(e.rate("forebay_read_ahead_total", "outcome"), "{{outcome}}"),)),
            Panel("Partitions remembered", "short", (Query(e.now("forebay_partition_cache_entries", "instance"), "{{instance}}"),)),
            Panel("Memory of partitions", "bytes", (Query(e.now("forebay_partition_cache_bytes", "instance"), "{{instance}}"),)),
            Panel("Partitions forgotten", "ops", (Query(e.rate("forebay_partitions_forgotten_total", "instance"), "{{instance}}"),)),
        ),
    )


def _compactor(e: Expressions) -> Dashboard:
    age = Query(e.now("forebay_compactor_segment_age_seconds"), "due at")
    paced = e.rate("forebay_compactor_paced_seconds_total", "instance")
    return Dashboard(
        "Compactor",
        (
            Panel("Waiting bytes", "bytes", (Query(e.now("forebay_compactor_waiting_bytes"), "waiting"),), "In no segment yet."),
            Panel("Oldest waiting record", "s", (Query(e.now("forebay_compactor_waiting_seconds"), "oldest"), age)),
            Panel("Runs", "ops", (Query(e.rate("forebay_compactor_runs_total", "outcome"), "{{outcome}}"),)),
            Panel("Bytes", "binBps", (Query(e.rate("forebay_compactor_bytes_total", "direction"), "{{direction}}"),)),
            Panel("Stages of a round, p99", "s", (Query(e.quantile(0.99, "forebay_compactor_stage_seconds", "stage"), "{{stage}}"),)),
            Panel("Cycles", "ops", (Query(e.rate("forebay_compactor_cycles_total", "ended"), "{{ended}}"),)),
            Panel("Objects collected", "ops", (Query(e.rate("forebay_gc_objects_total", "outcome"), "{{outcome}}"),)),
            Panel("Bytes collected", "binBps", (Query(e.rate("forebay_gc_bytes_total"), "deleted"),)),
            Panel(
                "Merges and recoveries",
                "ops",
                (
                    Query(e.rate("forebay_compactor_merges_total"), "merges"),
                    Query(e.rate("forebay_compactor_recoveries_total"), "recoveries"),
                ),
            ),
            Panel("Paced", "percentunit", (Query(paced, "{{instance}}"),), "Share of time for which requests waited their turn."),
            Panel("Since the last good cycle", "s", (Query(e.now("forebay_compactor_success_age_seconds", "instance"), "{{instance}}"),)),
            Panel(
                "Partitions",
                "short",
                (Query(e.now("forebay_compactor_partitions"), "all"), Query(e.now("forebay_compactor_failed_partitions"), "failed")),
            ),
            Panel("Objects that are missing", "short", (Query(e.now("forebay_gc_missing_objects")),), "More than 0: records are lost."),
            Panel("Offsets that retention removed", "ops", (Query(e.rate("forebay_retention_offsets_total")),)),
        ),
    )


def _store(e: Expressions) -> Dashboard:
    requests, dollars = "forebay_s3_requests_total", "forebay_cost_dollars_total"
    by_op = e.quantile(0.99, "forebay_object_store_request_duration_seconds", "op")
    return Dashboard(
        "Store and cost",
        (
            Panel("Requests by cause", "reqps", (Query(e.rate(requests, "request", "cause"), "{{request}} {{cause}}"),)),
            Panel("Requests by answer", "reqps", (Query(e.rate(requests, "answer"), "{{answer}}"),), "none: sent, and no answer came."),
            Panel("Calls, p99", "s", (Query(by_op, "{{op}}"),)),
            Panel(
                "Requests sent again", "reqps", (Query(e.rate("forebay_object_store_retries_total", "op", "cause"), "{{op}} {{cause}}"),)
            ),
            Panel("Bytes", "binBps", (Query(e.rate("forebay_s3_bytes_total", "direction", "cause"), "{{direction}} {{cause}}"),)),
            Panel("Dollars a day by cause", "currencyUSD", (Query(f"{e.rate(dollars, 'cause')} * {DAY_S}", "{{cause}}"),)),
            Panel("Dollars for a GiB written", "currencyUSD", (Query(_per_gib(e, e.rate(dollars))),), "Of requests, for all of them."),
            Panel(
                "Projected month and budget",
                "currencyUSD",
                (
                    Query(dollars_per_month(e, window="1h"), "requests, as in the last hour"),
                    Query(e.now("forebay_cost_budget_dollars"), "budget"),
                ),
                "cost.budget_per_month is the budget; without it there is none.",
            ),
            Panel("Stored", "bytes", (Query(e.now("forebay_footprint_bytes", "kind"), "{{kind}}"),), "As the collector listed it last."),
            Panel("Growth of unreferenced bytes", "binBps", (Query(orphan_growth(e)),), "Over 6 hours. Above 0 for long: orphans stay."),
            Panel("Storage, a month", "currencyUSD", (Query(e.now("forebay_cost_storage_dollars_per_month")),), is_number=True),
            Panel("Prices", "currencyUSD", (Query(e.now("forebay_cost_price_dollars", "item"), "{{item}}"),), is_number=True),
        ),
    )


def _groups(e: Expressions) -> Dashboard:
    return Dashboard(
        "Groups",
        (
            Panel(
                "Records behind",
                "short",
                (Query(_most(e.now("forebay_group_lag_records", "group", "topic")), "{{group}} {{topic}}"),),
                f"The {SHOWN_TOPICS} groups and topics with the most.",
            ),
            Panel(
                "Age of the first unread record",
                "s",
                (Query(_most(e.now("forebay_group_lag_seconds", "group", "topic")), "{{group}} {{topic}}"),),
                f"The {SHOWN_TOPICS} groups and topics that are furthest behind. 0 at the end.",
            ),
            Panel(
                "Share of retention behind",
                "percentunit",
                (Query(_most(e.now("forebay_group_lag_retention_ratio", "group", "topic")), "{{group}} {{topic}}"),),
                "That age by retention.ms of the topic. At 100 % unread records are deleted.",
            ),
            Panel(
                "Partitions without a commit",
                "short",
                (Query(_most(e.now("forebay_group_uncommitted_partitions", "group", "topic")), "{{group}} {{topic}}"),),
                "They are not in the lag.",
            ),
            Panel("Members of a group", "short", (Query(_most(e.now("forebay_group_joined_members", "group")), "{{group}}"),)),
            Panel("Groups by state", "short", (Query(e.now("forebay_groups", "state"), "{{state}}"),)),
            Panel("Members by broker", "short", (Query(e.now("forebay_group_members", "instance"), "{{instance}}"),)),
            Panel("Rebalances", "ops", (Query(e.rate("forebay_group_rebalances_total", "cause"), "{{cause}}"),)),
            Panel("Commits of offsets", "ops", (Query(e.rate("forebay_group_commits_total", "error"), "{{error}}"),)),
            Panel("Time of a commit", "s", _quantiles(e, "forebay_group_commit_duration_seconds")),
            Panel("Time to load a group", "s", _quantiles(e, "forebay_group_takeover_duration_seconds")),
            Panel("Coordinator slots", "short", (Query(e.now("forebay_coordinator_slots", "instance"), "{{instance}}"),)),
            Panel("Memory of groups", "bytes", (Query(e.now("forebay_group_memory_bytes", "instance"), "{{instance}}"),)),
            Panel("Offsets that expired", "ops", (Query(e.rate("forebay_group_offsets_expired_total", "cause"), "{{cause}}"),)),
        ),
    )


def _runtime(e: Expressions) -> Dashboard:
    files = f"{e.now('process_open_fds', 'instance')} / {e.now('process_max_fds', 'instance')}"
    held = e.observed("forebay_event_loop_blocked_seconds", "api")
    return Dashboard(
        "Runtime",
        (
            Panel("Lag of the event loop", "s", _quantiles(e, "forebay_event_loop_lag_seconds", "instance")),
            Panel("Long turns of the event loop", "ops", (Query(f"{held} or vector(0)", "{{api}}"),), "By what they were for."),
            Panel("CPU", "percentunit", (Query(e.rate("process_cpu_seconds_total", "instance"), "{{instance}}"),), "1 is one processor."),
            Panel("Resident memory", "bytes", (Query(e.now("process_resident_memory_bytes", "instance"), "{{instance}}"),)),
            Panel(
                "Garbage collections",
                "ops",
                (Query(e.rate("python_gc_collections_total", "generation"), "generation {{generation}}"),),
            ),
            Panel("Open files ÷ limit", "percentunit", (Query(files, "{{instance}}"),)),
            Panel("Connections", "short", (Query(e.now("forebay_connections", "instance"), "{{instance}}"),)),
            Panel("Series on the page", "short", (Query(e.now("forebay_metrics_series", "instance"), "{{instance}}"),)),
        ),
    )


def _oxia(e: Expressions) -> Dashboard:
    requests = "forebay_metadata_requests_total"
    return Dashboard(
        "Oxia",
        (
            Panel("Requests", "reqps", (Query(e.rate(requests, "op"), "{{op}}"),), "Of any metadata store, SQLite too."),
            Panel("Requests by outcome", "reqps", (Query(e.rate(requests, "outcome"), "{{outcome}}"),)),
            Panel("Requests, p99", "s", (Query(e.quantile(0.99, "forebay_metadata_request_duration_seconds", "op"), "{{op}}"),)),
            Panel("All requests", "s", _quantiles(e, "forebay_metadata_request_duration_seconds")),
            Panel("Operations for a GiB written", "short", (Query(_per_gib(e, e.rate(requests))),)),
            Panel("Writes fail", "short", (Query(e.now("forebay_store_failing", "op", store="metadata"), "{{op}}"),)),
            Panel("Clock ahead of the stores", "s", (Query(e.now("forebay_clock_difference_seconds", "store"), "{{store}}"),)),
            Panel("Sessions lost", "ops", (Query(e.rate("forebay_sessions_lost_total", "instance"), "{{instance}}"),)),
            Panel("Metadata went back", "short", (Query(e.now("forebay_metadata_went_back", "instance"), "{{instance}}"),)),
        ),
    )


_MADE_BY: Final[Mapping[str, Callable[[Expressions], Dashboard]]] = {
    "overview": _overview,
    "write": _write,
    "read": _read,
    "cache": _cache,
    "compactor": _compactor,
    "store": _store,
    "groups": _groups,
    "runtime": _runtime,
    "oxia": _oxia,
}


def as_grafana(name: str, dashboard: Dashboard) -> str:
    """The text of the file. The same dashboard gives the same bytes."""
    return json.dumps(_grafana_document(name, dashboard), indent=2, ensure_ascii=False) + "\n"


def _grafana_document(name: str, dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"forebay-{name}",
        "title": f"Forebay: {dashboard.title}",
        "tags": ["forebay"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [_LINK],
        "templating": {"list": [_DATASOURCES, _variable("cluster"), _variable("instance", 'cluster=~"$cluster"')]},
        "annotations": {"list": []},
        "panels": list(_grafana_panels(dashboard)),
    }


def _variable(label: str, *matchers: str) -> dict[str, Any]:
    """Choose among the values of a label. All of them is the choice of a Prometheus that has none, too."""
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": f"label_values({_IDENTITY}{{{','.join(matchers)}}}, {label})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "hide": 0,
        "skipUrlSync": False,
    }


def _grafana_panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Place panels from left to right, and begin a row where the next one has no room."""
    x = y = row_height = 0
    for number, panel in enumerate(dashboard.panels, start=1):
        width, height = _SIZES[panel.is_number]
        if x + width > COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        yield _panel(number, panel, {"x": x, "y": y, "w": width, "h": height})
        x, row_height = x + width, max(row_height, height)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": query.expression, "legendFormat": query.legend or panel.title}
        for index, query in enumerate(panel.queries)
    ]
    shown = {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": targets,
    }
    if panel.is_number:
        return {
            **shown,
            "type": "stat",
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "options": {"reduceOptions": {"values": False, "calcs": ["lastNotNull"]}, "textMode": "value_and_name"},
        }
    return {
        **shown,
        "type": "timeseries",
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
