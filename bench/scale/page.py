"""The section of docs/reference/benchmarks.md that a report comes to. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from bench.beside.page import NoPlace
from bench.results import MIB
from bench.scale.loads import ANY_BROKER, ONE_LEADER
from bench.scale.report import BROKERS_MAX, BROKERS_MIN, BY_NAME, CaseReport, ClusterRow, LawReport, ScaleReport, WallReport

BEGIN: Final = "<!-- bench.scale: begin -->"
END: Final = "<!-- bench.scale: end -->"
_NOTHING: Final = "–"
_LEADERS: Final = {ONE_LEADER: "`partition`", ANY_BROKER: "`self`"}


def renewed(page: str, report: ScaleReport) -> str:
    """The page with the section of this report between its marks. Raise `NoPlace`."""
    before, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise NoPlace(f"{BEGIN} and {END} must be there once, in this order")
    return f"{before}{begin}{section(report)}{end}{after}"


def section(report: ScaleReport) -> str:
    return "\n\n".join((_head(report), _rows(report), _walls(report), _remedies(report), _laws(report), _method(report))) + "\n"


def _head(report: ScaleReport) -> str:
    commit = f"commit {report.commit[:8]}" if report.commit else "a tree without a commit"
    runs = sum([len(case.runs) for case in report.cases])
    return (
        f"Made on {report.started_at[:10]} by `{report.command}` at {commit}: {runs} clusters of up to "
        f"{max(run.brokers for case in report.cases for run in case.runs)} brokers in virtual time, and laws that extrapolate them.\n"
        f"Figures are per second and of the whole cluster, with {report.partitions:,} partitions, each followed by one consumer. "
        "**Extrapolated** figures are in italics."
    )


def _rows(report: ScaleReport) -> str:
    head = (
        "load",
        "`kafka.leader`",
        "brokers",
        "S3 PUTs",
        "S3 GETs",
        "Oxia writes",
        "puts in them",
        "conflicts",
        "Oxia gets",
        "hints to each broker",
    )
    return _table((*head, "of its memory for partitions"), [_cells(case, row) for case in report.cases for row in case.rows])


def _cells(case: CaseReport, row: ClusterRow) -> tuple[str, ...]:
    figures = [row.per_s[name] for name in ("puts", "gets", "write_requests", "write_ops", "conflicts", "read_keys")] + [
        row.hints_per_broker_s
    ]
    mib = row.broker_partitions_bytes / MIB
    shown = [f"{figure:,.0f}" for figure in figures] + [f"{mib:,.0f} MiB ({row.uses['memory']:.0%})"]
    marked = [f"*{cell}*" for cell in shown] if row.is_extrapolated else shown
    return (case.title, _LEADERS[case.leader], f"{row.brokers:,}", *marked)


def _walls(report: ScaleReport) -> str:
    rows = []
    for case in report.cases:
        named = [_wall(wall) for wall in case.walls]
        kept = [_wall(wall) for wall in case.walls if not BY_NAME[wall.resource].grows_with_oxia]
        none = f"none up to {BROKERS_MAX:,}"
        rows.append((case.title, _LEADERS[case.leader], *[*named, none, _NOTHING][:2], [*kept, none][0]))
    return _table(("load", "`kafka.leader`", "the first wall", "the next one", "the first that more Oxia servers do not move"), rows)


def _wall(wall: WallReport) -> str:
    return f"{BY_NAME[wall.resource].title}: {_from(wall.brokers)}"


def _from(brokers: int) -> str:
    return f"**{brokers:,} brokers**" + (" or fewer" if brokers == BROKERS_MIN else "")


def _remedies(report: ScaleReport) -> str:
    names = dict.fromkeys([wall.resource for case in report.cases for wall in case.walls])
    said = [f"- **{BY_NAME[name].title}**: {BY_NAME[name].remedy}." for name in names]
    return "\n".join(["What there is against each:", "", *said])


def _laws(report: ScaleReport) -> str:
    by_figure: dict[str, list[LawReport]] = {}
    for case in report.cases:
        for law in case.laws:
            by_figure.setdefault(law.figure, []).append(law)
    rows = [(f"{figure.replace('_', ' ')} = {laws[0].words}", _factors(laws), _miss(laws)) for figure, laws in by_figure.items()]
    return _table(("law", "its factor, fitted for each load", "greatest miss where it was not fitted"), rows)


def _factors(laws: Sequence[LawReport]) -> str:
    factors = [law.factor for law in laws if law.fitted_on]
    if not factors:
        return _NOTHING
    least, most = f"{min(factors):.3g}", f"{max(factors):.3g}"
    return least if least == most else f"{least} to {most}"


def _miss(laws: Sequence[LawReport]) -> str:
    misses = [law.miss_max for law in laws if law.miss_max is not None]
    return f"{max(misses):.1%}" if misses else "not checked: too few events"


def _method(report: ScaleReport) -> str:
    costs, settings = report.costs, report.settings
    placed = ", ".join([f"{seconds * 1e6:,.0f} µs at {int(brokers):,}" for brokers, seconds in costs.placement_cpu_s.items()])
    writers = "more than were tried" if costs.writers_max is None else f"{costs.writers_max:,}"
    said = {
        "Clusters": "The real log of each broker (appender, committer, manifest reads, waiters, reader, leadership) runs over stores in "
        f"memory that are {settings['oxia_write_s'] * 1e3:g} ms (a write to Oxia), {settings['put_s'] * 1e3:g} ms (a PUT) and "
        f"{settings['get_s'] * 1e3:g} ms (a GET) away. There are no sockets, groups, compactors or faults.",
        "Laws": "A factor is fitted on three clusters of each load, and checked on two others; a miss of more than 15% ends the run. It is "
        "1 where a load had too few events to fit it. The window of conflicts, in seconds, is fitted on ten brokers and 20 partitions, and "
        "checked on fifteen.",
        "Limits": "What one Oxia server of four shards takes, and what obstore's GETs cost, was measured before Forebay was built on them. "
        "No limit of S3 itself is compared with.",
        "Hints": f"A message of the stream takes the loop {costs.message_cpu_s * 1e6:.0f} µs, and each hint in it "
        f"{costs.hint_cpu_s * 1e6:.2f} µs, though most brokers have no use for it; both are of this machine.",
        "Memory": f"A partition takes {costs.partition_bytes:,.0f} B of a broker, as the growth of a process says; the largest of "
        f"{costs.memory_partitions_max:,} partitions was {costs.memory_miss:+.1%} off.",
        "Writers": "A manifest names each live broker that ever wrote to it, once. "
        f"It had room for {writers}: what the next broker sends is refused.",
        "Metadata": f"To place one partition under `kafka.leader: partition` takes {placed} brokers, in each answer to Metadata.",
    }
    return "\n".join(f"- **{title}.** {text}" for title, text in said.items())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows))
