"""Nine dashboards as data: each panel says what it shows, in which unit, and by which expressions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from forebay.commands.generate.promql import Expressions
from process.cost.prices import GIB, MONTH_S
from runtime.telemetry import Metric

Unit = Literal["short", "bytes", "binBps", "s", "percentunit", "ops", "reqps", "currencyUSD"]
"""Names of Grafana's; bytes and bytes a second have binary prefixes."""
SHOWN_TOPICS: Final = 10
"""The topics with the most of something, in a panel by topic."""
EVERYWHERE: Final = ('cluster=~"$cluster"', 'instance=~"$instance"')
"""Matchers in each selector: `$cluster` and `$instance` are chosen above the panels."""
WINDOW: Final = "$__rate_interval"
DAY_S: Final = 86_400


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
    inline = f"{e.rate('forebay_inline_bytes_total')} / {e.rate('forebay_topic_bytes_total', direction='in')}"
    buffered = f"{e.now('forebay_request_buffer_bytes', 'instance')} / {e.now('forebay_request_buffer_limit_bytes', 'instance')}"
    return Dashboard(
        "Write path",
        (
            Panel("Stages of a flush, p99", "s", (Query(stages, "{{stage}}"),), "Wait for the flush, put of the object, commit."),
            Panel("WAL objects by trigger", "ops", (Query(e.rate("forebay_flush_objects_total", "trigger"), "{{trigger}}"),)),
            Panel("PUTs for a GiB", "short", (Query(put_per_gib(e)),), "Fewer and larger objects cost less and take longer."),
            Panel("Size of a WAL object", "bytes", (Query(f"{sealed} / {objects}"),)),
            Panel("Inline share of bytes", "percentunit", (Query(inline),), "Batches that their commit carries need no object."),
            Panel("Batches that are not inline", "ops", (Query(e.rate("forebay_gathered_batches_total", "reason"), "{{reason}}"),)),
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
                    Query(e.rate("forebay_healed_reads_total"), "healed"),
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
            Panel("Partitions remembered", "short", (Query(e.now("forebay_partitions_remembered", "instance"), "{{instance}}"),)),
            Panel("Memory of partitions", "bytes", (Query(e.now("forebay_partitions_remembered_bytes", "instance"), "{{instance}}"),)),
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
    held = e.observed("forebay_event_loop_held_seconds", "api")
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
