"""What a run of `bench.scale` leaves: JSON for machines, and a table for people. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.results import lined_up
from bench.scale.laws import Fitted, Observed
from bench.scale.loads import ScaleSettings, Shape
from bench.scale.walls import RESOURCES, MeasuredCosts, walls
from bench.units import GIB

SCHEMA: Final = 1
PER_WORK: Final = ("puts", "gets", "write_requests", "write_ops", "read_keys", "conflicts", "hints")


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    brokers: int
    partitions: int
    seconds: float
    is_fit: bool
    counts: dict[str, float]


class LawReport(msgspec.Struct, frozen=True, kw_only=True):
    """`miss_max` of the runs that the factor was not fitted on; None: too few events to check it, or none."""

    figure: str
    words: str
    factor: float
    fitted_on: int
    miss_max: float | None


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """`per_s` in the whole cluster; `uses` by resource, as a share of what there is."""

    brokers: int
    partitions: int
    is_extrapolated: bool
    per_s: dict[str, float]
    per_gib: dict[str, float]
    per_1000_records: dict[str, float]
    hints_per_broker_s: float
    broker_partitions_bytes: float
    uses: dict[str, float]


class WallReport(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    brokers: int


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    load: str
    title: str
    leader: str
    runs: list[RunRow]
    laws: list[LawReport]
    rows: list[ClusterRow]
    walls: list[WallReport]


class CostsReport(msgspec.Struct, frozen=True, kw_only=True):
    """`placement_cpu_s` by number of brokers; `memory_miss` is by how much bytes per partition miss the largest measured."""

    message_cpu_s: float
    hint_cpu_s: float
    placement_cpu_s: dict[str, float]
    partition_bytes: float
    memory_miss: float
    memory_partitions_max: int
    writers_max: int | None

    @property
    def measured(self) -> MeasuredCosts:
        return MeasuredCosts(self.message_cpu_s, self.hint_cpu_s, self.partition_bytes, self.writers_max)


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    command: str
    started_at: str
    commit: str | None
    machine: dict[str, Any]
    settings: dict[str, float]
    partitions: int
    costs: CostsReport
    cases: list[CaseReport]


def case_report(
    shape_of: Mapping[int, Shape],
    runs: Sequence[tuple[Observed, bool]],
    fitted: Sequence[Fitted],
    costs: CostsReport,
    settings: ScaleSettings,
) -> CaseReport:
    """`shape_of` has the shapes to show, by number of brokers; `runs` with whether the laws were fitted on them."""
    first = next(iter(shape_of.values()))

    def estimate(shape: Shape) -> dict[str, float]:
        return {one.law.figure: one.per_s(shape, settings) for one in fitted}

    observed = {run.shape: run for run, _ in runs}
    found = walls(lambda brokers: Shape(first.load, first.leader, brokers, first.partitions), estimate, costs.measured)
    return CaseReport(
        load=first.load.name,
        title=first.load.title,
        leader=first.leader,
        runs=[
            RunRow(
                brokers=run.shape.brokers,
                partitions=run.shape.partitions,
                seconds=run.seconds,
                is_fit=is_fit,
                counts={name: float(count) for name, count in run.counts.items()},
            )
            for run, is_fit in runs
        ],
        laws=[
            LawReport(figure=one.law.figure, words=one.law.words, factor=one.factor, fitted_on=one.fitted_on, miss_max=one.miss_max)
            for one in fitted
        ],
        rows=[_row(shape, observed.get(shape), estimate(shape), costs) for shape in shape_of.values()],
        walls=[WallReport(resource=wall.resource.name, brokers=wall.brokers) for wall in found],
    )


def _row(shape: Shape, observed: Observed | None, estimate: Mapping[str, float], costs: CostsReport) -> ClusterRow:
    per_s = dict(estimate) if observed is None else {figure: observed.per_s(figure) for figure in estimate}
    load = shape.load
    batches_per_s = shape.brokers * load.batches_per_s(shape.brokers, shape.partitions)
    gib_per_s, records_per_s = batches_per_s * load.batch_bytes / GIB, batches_per_s * load.batch_records
    return ClusterRow(
        brokers=shape.brokers,
        partitions=shape.partitions,
        is_extrapolated=observed is None,
        per_s=per_s,
        per_gib={figure: per_s[figure] / gib_per_s for figure in PER_WORK},
        per_1000_records={figure: per_s[figure] / records_per_s * 1_000 for figure in PER_WORK},
        hints_per_broker_s=per_s["hints"] / shape.brokers,
        broker_partitions_bytes=shape.partitions_written * costs.partition_bytes,
        uses={resource.name: resource.use(shape, per_s, costs.measured) for resource in RESOURCES},
    )


def table(cases: Sequence[CaseReport]) -> str:
    """Figures per second in the whole cluster; `*` marks what is extrapolated."""
    head = ("load", "leader", "brokers", "PUTs", "GETs", "Oxia writes", "puts in them", "gets", "hints each", "MiB each", "first walls")
    lines: list[tuple[str, ...]] = [head]
    for case in cases:
        for row in case.rows:
            shown = [row.per_s[name] for name in ("puts", "gets", "write_requests", "write_ops", "read_keys")]
            lines.append(
                (
                    case.load,
                    case.leader,
                    f"{row.brokers:,}{'*' if row.is_extrapolated else ''}",
                    *[f"{figure:,.0f}" for figure in (*shown, row.hints_per_broker_s, row.broker_partitions_bytes / 2**20)],
                    ", ".join([f"{wall.resource} at {wall.brokers:,}" for wall in case.walls[:2]]) or "none",
                )
            )
    return lined_up(lines)
