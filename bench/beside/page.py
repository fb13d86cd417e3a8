"""The section of docs/reference/benchmarks.md that a report comes to. Pure."""

from collections.abc import Iterable
from typing import Final

from bench.beside.loads import DELAYS_MS, KAFKA_WARM_UP_TIMES, TARGETS, TITLES, WARM_UP_SHARE, LoadKind
from bench.beside.report import RATES, UNITS, BesideReport, LoadReport, TargetReport, spread
from bench.processes import KAFKA
from forebay.commands.demo.run import PRICES_OF

BEGIN: Final = "<!-- bench.beside: begin -->"
END: Final = "<!-- bench.beside: end -->"
CHART_NAME: Final = "beside-kafka.svg"
_NOTHING: Final = "–"


class NoPlace(Exception):
    """A page does not have the two marks, in their order and once each."""


def renewed(page: str, report: BesideReport) -> str:
    """The page with the section of this report between its marks. Raise `NoPlace`."""
    before, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise NoPlace(f"{BEGIN} and {END} must be there once, in this order")
    return f"{before}{begin}{section(report)}{end}{after}"


def section(report: BesideReport) -> str:
    chart = f"![The ratios to Apache Kafka and the latencies of the table, as bars and lines]({CHART_NAME})"
    return "\n\n".join((_head(report), _rates(report), chart, _costs(report), _method())) + "\n"


def _head(report: BesideReport) -> str:
    machine, servers = report.machine, report.servers
    cores = f"{machine['cpu_count']} cores ({machine['cpu_model']}; load {machine['load_average_1m']:.1f} when it began)"
    commit = f"commit {report.commit[:8]}" if report.commit else "a tree without a commit"
    return (
        f"Measured on {report.started_at[:10]} by `{report.command}` at {commit}, on {cores}:\n"
        f"Apache Kafka {servers['kafka']} and four Forebays, one over files and SQLite, three over S3 (versitygw {servers['versitygw']}) "
        f"and Oxia {servers['oxia']}.\n{_rounds(report.repeats)}; in bold the ratio to Kafka in the same round."
    )


def _rounds(repeats: int) -> str:
    return "One round" if repeats == 1 else f"Medians of {repeats} rounds, least and greatest in brackets"


def _rates(report: BesideReport) -> str:
    return _table("load", [row for load in report.loads for row in _rate_rows(load)])


def _rate_rows(load: LoadReport) -> list[tuple[str, ...]]:
    if load.kind is LoadKind.LATENCY:
        percentiles = (("p50_ms", "p50"), ("p99_ms", "p99"))
        return [(f"{load.title}, {title}, {UNITS[figure]}", *_figures(load, figure)) for figure, title in percentiles]
    rate = RATES[load.kind]
    return [(f"{load.title}, {UNITS[rate]}", *(_rate(load.target(name), rate) for name in TARGETS))]


def _rate(target: TargetReport | None, rate: str) -> str:
    cell = _figure(target, rate)
    if target is None or target.name == KAFKA or "times_kafka" not in target.summary:
        return cell
    times = target.summary["times_kafka"]
    return f"{cell}<br>{spread(times, before='**', after='×**')}"


def _costs(report: BesideReport) -> str:
    cpu = [_cpu_row(load) for load in report.loads]
    volumes = [load for load in report.loads if load.kind is LoadKind.VOLUME]
    dollars = [(f"{load.title}, $/GiB", *(_dollars(load.target(name)) for name in TARGETS)) for load in volumes]
    return _table("what it costs", [*cpu, *dollars, ("peak memory through all of it, MiB", *(_peak(report, name) for name in TARGETS))])


def _cpu_row(load: LoadReport) -> tuple[str, ...]:
    if load.kind is LoadKind.VOLUME:
        return (f"{load.title}, CPU s/GiB", *_figures(load, "cpu_s_per_gib"))
    return (f"{load.title}, CPU s/1,000", *_figures(load, "cpu_s_per_1000"))


def _peak(report: BesideReport, name: str) -> str:
    peaks = [
        target.summary["peak_rss_mib"].max for load in report.loads if (target := load.target(name)) and "peak_rss_mib" in target.summary
    ]
    return f"{max(peaks):.0f}" if peaks else _NOTHING


def _dollars(target: TargetReport | None) -> str:
    if target is None or "dollars_per_gib" not in target.summary:
        return _NOTHING
    return f"{target.summary['dollars_per_gib'].median:.5f}"


def _figures(load: LoadReport, figure: str) -> tuple[str, ...]:
    return tuple(_figure(load.target(name), figure) for name in TARGETS)


def _figure(target: TargetReport | None, figure: str) -> str:
    return spread(target.summary[figure]) if target is not None and figure in target.summary else _NOTHING


def _method() -> str:
    delays = " or ".join(f"{delay:g}" for delay in DELAYS_MS.values() if delay)
    said = {
        "Turns": f"All targets run from beginning to end. A load warms each of them with {WARM_UP_SHARE:.0%} of it, and Kafka, which is "
        f"compiled while it runs, with {KAFKA_WARM_UP_TIMES} times as much as is measured; in each round Kafka comes first, and the others "
        "in a changing order.",
        "Client": "Each measurement is `forebay bench` in a new process on the same cores, librdkafka under Python. Producers are "
        "idempotent with acks=all, have five batches under way each, and write random bytes, which no codec makes smaller, to twelve "
        "partitions, or to one from end to end.",
        "Kafka": "One node with its own defaults and a heap of 1 GiB acknowledges what is in the page cache; Forebay acknowledges what is "
        "synced to files, or what S3 and Oxia have taken.",
        "Forebay": "`forebay serve` has its defaults, but no compactor beside it. It flushes every 5 ms to files and every 250 ms to S3: "
        "a PUT that takes less than that is a part of this wait, 512 KiB of producers that wait for it go after 20 ms, and what producers "
        "send once they were answered after 5. What a partition is sent up to 1 KiB travels in its commit, and waits for no flush and "
        "no PUT.",
        "S3": "versitygw is the next process and does not sync; a proxy in a process of its own, before it, holds back every answer for "
        f"{delays} ms.",
        "Reading": "A topic is written before each measurement and read from its beginning: Kafka has it in the page cache, Forebay the "
        "end of it in its own memory, and reads files past the page cache.",
        "CPU": "User and system seconds of the broker's process count; S3, Oxia and the client come on top.",
        "Dollars": f"The broker's requests to S3 cost what S3 Standard lists ({PRICES_OF}), per GiB that is written or read; compaction, "
        "storage and transfer are extra.",
    }
    return "\n".join(f"- **{title}.** {text}" for title, text in said.items())


def _table(first: str, rows: Iterable[tuple[str, ...]]) -> str:
    head = (first, *(TITLES[name] for name in TARGETS))
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows))
