"""Alerts, recording rules and a scrape configuration for Prometheus, as data and as the YAML that it reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from forebay.commands.generate.dashboards import Expressions, dollars_per_month, orphan_growth, put_per_gib
from runtime.telemetry import Metric

BROKERS: Final = "forebay"
COMPACTORS: Final = "forebay-compactor"
"""Names of jobs in the scrape configuration, by which alerts know what is down."""

Urgency = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Alert:
    """True while `value` meets `condition`, and fires after `for_` of Prometheus' durations. `says` is for whoever is called."""

    name: str
    value: str
    condition: str
    for_: str
    severity: Urgency
    says: str

    @property
    def expression(self) -> str:
        return f"{self.value} {self.condition}"


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus keeps under a name of its own."""

    name: str
    expression: str
    says: str


def alerts(table: Mapping[str, Metric]) -> tuple[Alert, ...]:
    """Every alert, over the metrics of the table. Raise ValueError for a metric that it does not have."""
    e = Expressions(table)
    return (*_process_alerts(e), *_store_alerts(e), *_pace_alerts(e), *_data_alerts(e))


def recordings(table: Mapping[str, Metric]) -> tuple[Recording, ...]:
    """Every recording rule. Each cluster has a series of its own."""
    e = Expressions(table)
    return (
        Recording(
            "forebay:put_per_gib:rate1h", put_per_gib(e, "cluster", window="1h"), "PUTs of WAL objects for a GiB that producers sent"
        ),
        Recording("forebay:lag_seconds:max", e.now("forebay_group_lag_seconds", "cluster", "group"), "how far each group is behind"),
        Recording("forebay:dollars_per_month", dollars_per_month(e, "cluster", window="1h"), "requests, if they go on as in the last hour"),
    )


def _process_alerts(e: Expressions) -> Iterator[Alert]:
    yield Alert(
        "BrokerDown", f'up{{job="{BROKERS}"}}', "== 0", "1m", "critical", "Prometheus cannot scrape a broker: it is down or unreachable."
    )
    yield Alert("CompactorDown", f'up{{job="{COMPACTORS}"}}', "== 0", "5m", "warning", "A compactor is down: waiting records grow.")
    yield Alert(
        "NotReady",
        e.selector("forebay_ready"),
        "== 0",
        "2m",
        "critical",
        "A process runs, and its /readyz says what keeps it from serving.",
    )
    yield Alert(
        "UnexpectedErrors",
        f"increase({e.selector('forebay_unexpected_errors_total')}[10m])",
        "> 0",
        "0s",
        "warning",
        "A request failed in a way that no handler foresaw: a bug. The log has it.",
    )
    lag = e.quantile(0.99, "forebay_event_loop_lag_seconds", "cluster", "job", "instance")
    yield Alert("LoopLag", lag, "> 0.1", "10m", "warning", "The event loop is late: the process needs more CPU, or a turn is long.")


def _store_alerts(e: Expressions) -> Iterator[Alert]:
    requests = "forebay_s3_requests_total"
    failed = f"{e.rate(requests, 'cluster', answer='~5xx|none')} / {e.rate(requests, 'cluster')}"
    throttled = e.rate("forebay_object_store_retries_total", "cluster", cause="throttled")
    failing = f"min_over_time({e.selector('forebay_store_failing')}[1m])"
    yield Alert("StoreFailing", failing, "== 1", "0s", "critical", "No request of this kind to the store has succeeded for a minute.")
    yield Alert("S3Errors", failed, "> 0.01", "5m", "warning", "More than 1 % of the requests to S3 fail or are not answered.")
    yield Alert("S3Throttled", throttled, "> 0", "5m", "warning", "S3 asks for fewer requests, and they are sent again.")
    budget = e.now("forebay_cost_budget_dollars", "cluster")
    yield Alert(
        "OverBudget",
        f"{dollars_per_month(e, 'cluster', window='1h')} / {budget}",
        "> 1",
        "1h",
        "warning",
        "Requests to S3 will cost more this month than cost.budget_per_month.",
    )


def _pace_alerts(e: Expressions) -> Iterator[Alert]:
    for name, stage, limit in (("SlowFlush", "put", "2"), ("SlowCommit", "commit", "0.5")):
        p99 = e.quantile(0.99, "forebay_flush_duration_seconds", "cluster", "job", "instance", stage=stage)
        yield Alert(
            name, p99, f"> {limit}", "10m", "warning", f"The {stage} of a flush takes longer than {limit} s (p99): producers wait for it."
        )
    full = f"{e.selector('forebay_request_buffer_bytes')} / {e.selector('forebay_request_buffer_limit_bytes')}"
    yield Alert("BufferFull", full, "> 0.8", "5m", "warning", "Requests fill the memory for them: at 1 producers are slowed down.")
    waiting, age = e.selector("forebay_compactor_waiting_seconds"), e.selector("forebay_compactor_segment_age_seconds")
    yield Alert(
        "CompactorBehind",
        f"{waiting} / clamp_min({age}, 300)",
        "> 2",
        "15m",
        "warning",
        "Records wait twice as long for a segment as compactor.segment_age, and at least 10 minutes.",
    )
    behind = e.now("forebay_group_lag_seconds", "cluster", "group", "topic")
    yield Alert("LagSeconds", behind, "> 300", "10m", "warning", "A group has not read records that are older than 5 minutes.")
    near = e.now("forebay_group_lag_retention_ratio", "cluster", "group", "topic")
    yield Alert(
        "RetentionCliff",
        near,
        "> 0.7",
        "10m",
        "warning",
        "Retention will delete records that a group has not read: over 70 % of its time is up.",
    )
    success = e.selector("forebay_compactor_success_age_seconds")
    yield Alert("CompactorStuck", success, "> 600", "15m", "warning", "A compactor has ended no cycle for 10 minutes: its log says why.")


def _data_alerts(e: Expressions) -> Iterator[Alert]:
    corrupt, healed = e.selector("forebay_corrupt_reads_total"), e.selector("forebay_recovered_reads_total")
    yield Alert(
        "CorruptReads",
        f"delta((sum without (cause) ({corrupt}) - {healed})[10m:])",
        "> 0",
        "1m",
        "critical",
        "Reads of the object store gave what was not written, and repeating them did not help: data_missing or data_damaged in the log.",
    )
    yield Alert(
        "OrphansGrow",
        orphan_growth(e, "cluster"),
        "> 0",
        "12h",
        "warning",
        "Objects that nothing refers to have grown for half a day: the collector deletes less than there is.",
    )
    missing, went_back = e.selector("forebay_gc_missing_objects"), e.selector("forebay_metadata_went_back")
    yield Alert(
        "ObjectsMissing", missing, "> 0", "0s", "critical", "Objects that records lie in are gone from the store. `forebay storage verify`."
    )
    yield Alert("MetadataWentBack", went_back, "== 1", "0s", "critical", "The metadata are older than they were: a copy was restored.")


def alerts_yaml(rules: Sequence[Alert], *, for_: str | None = None) -> str:
    """A rule file. `for_` takes the place of each alert's own, to try them out."""
    lines = ["groups:", "  - name: forebay-alerts", "    rules:"]
    for rule in rules:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {_quoted(rule.expression)}",
            f"        for: {for_ or rule.for_}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {_quoted(rule.says)}",
            f"          description: {_quoted(_DESCRIPTION)}",
        ]
    return "\n".join(lines) + "\n"


_DESCRIPTION: Final = "{{ $labels.job }} {{ $labels.instance }} {{ $labels.cluster }}: the value is {{ $value }}."


def recordings_yaml(rules: Sequence[Recording]) -> str:
    """A rule file."""
    lines = ["groups:", "  - name: forebay-recording", "    rules:"]
    for rule in rules:
        lines += [f"      # {rule.says}", f"      - record: {rule.name}", f"        expr: {_quoted(rule.expression)}"]
    return "\n".join(lines) + "\n"


def scrape_yaml(
    *, brokers: Sequence[str], compactors: Sequence[str], interval: str, rule_files: Sequence[str], cluster: str | None = None
) -> str:
    """A configuration that scrapes these addresses, `host:port` each. `cluster` becomes a label of all their series."""
    lines = ["global:", f"  scrape_interval: {interval}", f"  evaluation_interval: {interval}"]
    if rule_files:
        lines += ["rule_files:", *(f"  - {_quoted(file)}" for file in rule_files)]
    lines.append("scrape_configs:")
    for job, targets in ((BROKERS, brokers), (COMPACTORS, compactors)):
        if targets:
            lines += [f"  - job_name: {job}", "    static_configs:", "      - targets:"]
            lines += [f"          - {_quoted(target)}" for target in targets]
            lines += [] if cluster is None else ["        labels:", f"          cluster: {_quoted(cluster)}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A scalar of YAML."""
    return "'" + text.replace("'", "''") + "'"
