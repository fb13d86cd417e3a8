"""The results of `bench.scale`: JSON for machines, a table for people, and which resource a load uses up first. Pure.

The rate of one server of Oxia and the cost of a GET were measured on a machine of two cores before Forebay was built on them.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from bench.results import GIB, lined_up
from bench.scale.laws import Fitted, Observed
from bench.scale.loads import ANY_BROKER, ScaleSettings, Shape
from storage.log.limits import DEFAULT_LIMITS

OXIA_PUTS_PER_S: Final = ((1, 7_000.0), (10, 34_000.0), (100, 86_000.0), (500, 106_500.0))
"""Puts in a request, and puts per second of one server with four shards, asked by one asyncio process; the middles of ranges."""
OXIA_KEY_READ_S: Final = (0.45e-3 - 0.23e-3) / 99
"""The time that each further key adds to a Read: a get takes 0.23 ms, 100 gets in one Read 0.45 ms."""
GET_CPU_S: Final = ((64 * 2**10, 0.27 / 2_000), (4 * 2**20, 0.65 / 256))
"""Bytes of a GET, and its CPU seconds in obstore: measured with 2,000 of 64 KiB, and ranges of 4 MiB (docs/reference/benchmarks.md)."""
BROKERS_MIN: Final = 10
BROKERS_MAX: Final = 10_000
"""Walls are looked for between these. A smaller cluster may be short of what a larger one has enough of: memory."""

Figures = Mapping[str, float]
"""Per second and in the whole cluster, by the name of the law."""
SCHEMA: Final = 1
PER_WORK: Final = ("puts", "gets", "write_requests", "write_ops", "read_keys", "conflicts", "hints")


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Results of `bench.scale.costs` and `bench.scale.memory`. `writers_max` None: more than were tried."""

    message_cpu_s: float
    hint_cpu_s: float
    partition_bytes: float
    writers_max: int | None


Use = Callable[[Shape, Figures, MeasuredCosts], float]


@dataclass(frozen=True, slots=True)
class Resource:
    """`use` is the share of it that a load takes: above 1 there is not enough. `remedy` is what there is against it."""

    name: str
    title: str
    remedy: str
    use: Use
    grows_with_oxia: bool = False
    """A cluster gets more of it by more servers of Oxia."""


@dataclass(frozen=True, slots=True)
class Wall:
    """From `brokers` on the resource is not enough."""

    resource: Resource
    brokers: int


def oxia_puts_per_s(ops_per_request: float) -> float:
    """What one server takes, between the points that were measured as a line in logarithms, and beyond them as at the nearest."""
    points = [(math.log(size), math.log(rate)) for size, rate in OXIA_PUTS_PER_S]
    at = min(max(math.log(ops_per_request), points[0][0]), points[-1][0])
    for (low, low_rate), (high, high_rate) in itertools.pairwise(points):
        if at <= high:
            return math.exp(low_rate + (high_rate - low_rate) * (at - low) / (high - low))
    raise AssertionError("between the first and the last")


def get_cpu_s(size_bytes: float) -> float:
    (small, small_s), (large, large_s) = GET_CPU_S
    per_byte_s = (large_s - small_s) / (large - small)
    return max(0.0, small_s + (size_bytes - small) * per_byte_s)


def _oxia(_shape: Shape, per_s: Figures, _costs: MeasuredCosts) -> float:
    requests_per_s = per_s["write_requests"]
    return per_s["write_ops"] / oxia_puts_per_s(max(1.0, per_s["write_ops"] / requests_per_s)) if requests_per_s else 0.0


def _oxia_gets(_shape: Shape, per_s: Figures, _costs: MeasuredCosts) -> float:
    """Without what a request costs beside its keys, so less than it is."""
    return per_s["read_keys"] * OXIA_KEY_READ_S


def _hints(shape: Shape, per_s: Figures, costs: MeasuredCosts) -> float:
    """Every broker receives a message for each write request of the cluster, and a hint for each key that it changed."""
    return per_s["write_requests"] * costs.message_cpu_s + per_s["hints"] / shape.brokers * costs.hint_cpu_s


def _reads(shape: Shape, per_s: Figures, _costs: MeasuredCosts) -> float:
    gets_per_s = per_s["gets"]
    return gets_per_s * get_cpu_s(per_s["get_bytes"] / gets_per_s) / shape.brokers if gets_per_s else 0.0


def _memory(shape: Shape, _per_s: Figures, costs: MeasuredCosts) -> float:
    return shape.partitions_written * costs.partition_bytes / DEFAULT_LIMITS.partitions_bytes_max


def _writers(shape: Shape, _per_s: Figures, costs: MeasuredCosts) -> float:
    return shape.brokers / costs.writers_max if shape.leader == ANY_BROKER and costs.writers_max else 0.0


RESOURCES: Final = (
    Resource("oxia", "writes that one Oxia server takes", "more shards, on more servers", _oxia, grows_with_oxia=True),
    Resource("oxia_gets", "gets that one Oxia server answers", "more shards, on more servers", _oxia_gets, grows_with_oxia=True),
    Resource(
        "hints",
        "the loop of each broker, with all hints of the cluster",
        "nothing yet: Oxia filters no hints, and every broker follows every shard",
        _hints,
    ),
    Resource(
        "reads",
        "a core of each broker, with what its consumers read of others' objects",
        "`kafka.leader: partition`: consumers ask the broker that has the bytes in memory",
        _reads,
    ),
    Resource(
        "memory",
        "the 256 MiB of a broker for partitions",
        "`kafka.leader: partition`; beyond it partitions are forgotten and read again",
        _memory,
    ),
    Resource("writers", "the room of a manifest for the brokers that write to it", "`kafka.leader: partition`", _writers),
)
BY_NAME: Final = {resource.name: resource for resource in RESOURCES}


def walls(
    shape_of: Callable[[int], Shape], estimate: Callable[[Shape], Figures], costs: MeasuredCosts, resources: Sequence[Resource] = RESOURCES
) -> list[Wall]:
    """The first one first. A resource that BROKERS_MIN brokers are short of has its wall there."""
    found: list[Wall] = []
    left = list(resources)
    for brokers in _numbers():
        shape = shape_of(brokers)
        per_s = estimate(shape)
        hit = [resource for resource in left if resource.use(shape, per_s, costs) > 1]
        found += [Wall(resource, brokers) for resource in sorted(hit, key=lambda one: -one.use(shape, per_s, costs))]
        left = [resource for resource in left if resource not in hit]
    return found


def _numbers() -> list[int]:
    """Numbers of brokers two percent apart."""
    numbers = [BROKERS_MIN]
    while numbers[-1] < BROKERS_MAX:
        numbers.append(min(BROKERS_MAX, max(numbers[-1] + 1, round(numbers[-1] * 1.02))))
    return numbers


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
