"""What each figure of a cluster follows, and by how much a law misses what was measured. Pure.

A law is a formula of brokers, partitions, load and settings, times one factor, which is fitted on some runs and checked on the others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.scale.loads import ANY_BROKER, ScaleSettings, Shape
from storage.limits import BLOCK_BYTES, EARLY_SLICE_BYTES_MAX
from storage.log.flush import COMMIT_COST_BYTES
from storage.log.limits import DEFAULT_LIMITS

MISS_MAX: Final = 0.15
EVENTS_MIN: Final = 200
"""Fewer events than this in a run are chance: no law is fitted on them or checked by them."""
COLLISIONS_MIN: Final = 400
"""The same of conflicts, which come in bursts: two flushes that meet have many partitions in common."""
POLLS_PER_S: Final = 1.0
"""A partition that a consumer waits for is read as often: `TRUSTED_POLL_S` of broker/delayed_fetch.py."""

PUTS_MIN: Final = 30
"""The same of PUTs, which come at regular intervals."""

Formula = Callable[[Shape, ScaleSettings], float]


class LawMissed(Exception):
    """A law that misses what was measured says nothing about what was not."""


@dataclass(frozen=True, slots=True)
class Flow:
    """How one broker commits: `lone_per_s` commits of a batch each go early, and share `early_puts_per_s` objects. `flushes_per_s` flushes
    store an object of `slices` slices each.
    """

    lone_per_s: float
    early_puts_per_s: float
    flushes_per_s: float
    slices: float
    object_bytes: float

    @property
    def commits_per_s(self) -> float:
        return self.lone_per_s + self.flushes_per_s * self.slices


def flow(shape: Shape, settings: ScaleSettings) -> Flow:
    load = shape.load
    batches_per_s = load.batches_per_s(shape.brokers, shape.partitions)
    lone_per_s = early_puts_per_s = 0.0
    if load.batch_bytes <= EARLY_SLICE_BYTES_MAX and settings.early_bytes_per_s:
        lone_per_s = min(batches_per_s, settings.early_bytes_per_s / (load.batch_bytes + COMMIT_COST_BYTES))
        early_puts_per_s = max(lone_per_s * load.batch_bytes / DEFAULT_LIMITS.early_object_bytes, 1 / DEFAULT_LIMITS.early_age_s)
    gathered_per_s = batches_per_s - lone_per_s
    if not gathered_per_s:
        return Flow(lone_per_s, early_puts_per_s, 0.0, 0.0, 0.0)
    flushes_per_s = max(1 / settings.flush_interval_s, gathered_per_s * load.batch_bytes / settings.flush_bytes)
    batches = gathered_per_s / flushes_per_s
    written = shape.partitions_written
    return Flow(lone_per_s, early_puts_per_s, flushes_per_s, written * -math.expm1(-batches / written), batches * load.batch_bytes)


def _puts(shape: Shape, settings: ScaleSettings) -> float:
    flows = flow(shape, settings)
    return shape.brokers * (flows.flushes_per_s + flows.early_puts_per_s)


def _commits(shape: Shape, settings: ScaleSettings) -> float:
    return shape.brokers * flow(shape, settings).commits_per_s


def _collisions(shape: Shape, settings: ScaleSettings) -> float:
    """Commits to a partition that fall into a second after another broker's; the factor is the window that a commit is open to them."""
    if shape.leader != ANY_BROKER:
        return 0.0
    commits_per_s = _commits(shape, settings)
    return commits_per_s * commits_per_s / shape.partitions * _others(shape)


def _write_ops(shape: Shape, settings: ScaleSettings) -> float:
    return _commits(shape, settings) * (1 + 1 / DEFAULT_LIMITS.pending_entries_max)


def _write_requests(shape: Shape, settings: ScaleSettings) -> float:
    one = flow(shape, settings)
    shards = settings.shards * (1 - math.pow(1 - 1 / settings.shards, one.slices))
    return shape.brokers * (one.lone_per_s + one.flushes_per_s * shards)


def _hints(shape: Shape, settings: ScaleSettings) -> float:
    return shape.brokers * _write_ops(shape, settings)


def _read_keys(shape: Shape, settings: ScaleSettings) -> float:
    """Consumers read what was hinted, also by their own broker, and poll; a producer's broker reads what another broker wrote."""
    written_by_others = _others(shape) if shape.leader == ANY_BROKER else 0.0
    return POLLS_PER_S * shape.partitions + _commits(shape, settings) * (1 + written_by_others)


def _gets(shape: Shape, settings: ScaleSettings) -> float:
    """A consumer's broker reads an object from the slice it wants to the next one that it has: with each new lowest slice, once more."""
    blocks, slices = _read_by_others(shape, settings)
    return blocks * _mean_minima(slices)


def _get_bytes(shape: Shape, settings: ScaleSettings) -> float:
    blocks, slices = _read_by_others(shape, settings)
    one = flow(shape, settings)
    if not slices:
        return 0.0
    return blocks * min(one.object_bytes, BLOCK_BYTES) * (1 + math.expm1(-slices) / slices)


def _read_by_others(shape: Shape, settings: ScaleSettings) -> tuple[float, float]:
    """Pairs of a block and another broker in a second, and the slices in a block that consumers of that broker want."""
    one = flow(shape, settings)
    if shape.leader != ANY_BROKER or not one.flushes_per_s:
        return 0.0, 0.0
    blocks = math.ceil(one.object_bytes / BLOCK_BYTES)
    return shape.brokers * one.flushes_per_s * (shape.brokers - 1) * blocks, one.slices / shape.brokers / blocks


def _mean_minima(mean: float) -> float:
    """How often the next of n numbers is the lowest so far, n being Poisson with that mean: the integral of (1 - exp(-t)) / t."""
    steps = 400
    width = mean / steps
    return sum([-math.expm1(-t) / t * width for t in ((step + 0.5) * width for step in range(steps))]) if mean else 0.0


def _others(shape: Shape) -> float:
    return (shape.brokers - 1) / shape.brokers


@dataclass(frozen=True, slots=True)
class ScaleLaw:
    """`words` state it; `figure` is the name of what it is about, per second and in the whole cluster."""

    figure: str
    words: str
    formula: Formula
    events_min: int = EVENTS_MIN
    events: str = ""
    """The figure that counts how often it happened; that of the law itself where none is named."""

    @property
    def counted_by(self) -> str:
        return self.events or self.figure


LAW_OF_CONFLICTS: Final = ScaleLaw(
    "conflicts", "commits/s² / partitions × (1 - 1 / brokers) × a window", _collisions, events_min=COLLISIONS_MIN
)

LAWS: Final = (
    ScaleLaw(
        "puts", "brokers × max(1 / flush interval, bytes/s / flush bytes); none where commits carry the batches", _puts, events_min=PUTS_MIN
    ),
    ScaleLaw("commits", "brokers × flushes/s × different partitions in a flush, and one for each batch that a commit carries", _commits),
    LAW_OF_CONFLICTS,
    ScaleLaw("write_ops", "commits × (1 + 1 / 16)", _write_ops),
    ScaleLaw("write_requests", "brokers × (flushes/s × shards that a flush meets + commits that carry a batch)", _write_requests),
    ScaleLaw("read_keys", "partitions that are waited for × polls/s + commits × (1 + those that follow another broker's)", _read_keys),
    ScaleLaw("hints", "brokers × write ops", _hints),
    ScaleLaw("gets", "objects/s × other brokers × the reads that the slices of a block take", _gets),
    ScaleLaw("get_bytes", "objects/s × other brokers × the part of a block that is read", _get_bytes, events="gets"),
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What one run counted of each figure, within `seconds`."""

    shape: Shape
    seconds: float
    counts: Mapping[str, float]

    def per_s(self, figure: str) -> float:
        return self.counts[figure] / self.seconds


@dataclass(frozen=True, slots=True)
class Fitted:
    """A law with its factor, fitted on runs of one load under one strategy. `misses` are those of the runs that it was not fitted on."""

    law: ScaleLaw
    factor: float
    fitted_on: int
    misses: tuple[float, ...]

    def per_s(self, shape: Shape, settings: ScaleSettings) -> float:
        return self.factor * self.law.formula(shape, settings)

    @property
    def miss_max(self) -> float | None:
        """The greatest, as a share of what was measured; None if no run had enough events to check it by."""
        return max(map(abs, self.misses), default=None)


def fit(law: ScaleLaw, fitting: Sequence[Observed], checking: Sequence[Observed], settings: ScaleSettings) -> Fitted:
    """The factor is the geometric mean of measured / formula; 1 where nothing is expected. Raise `LawMissed`."""
    counted = [run for run in fitting if _counts(law, run)]
    for run in (*fitting, *checking):
        if not law.formula(run.shape, settings) and run.counts[law.counted_by] >= law.events_min:
            raise LawMissed(f"{law.figure}: none expected, {run.counts[law.figure]:.0f} measured: {run.shape}")
    factor = 1.0
    if counted:
        factor = math.exp(sum([math.log(run.per_s(law.figure) / law.formula(run.shape, settings)) for run in counted]) / len(counted))
    checked = [run for run in checking if _counts(law, run)]
    return Fitted(
        law,
        factor,
        len(counted),
        tuple([factor * law.formula(run.shape, settings) / run.per_s(law.figure) - 1 for run in checked]) if counted else (),
    )


def check(fitted: Sequence[Fitted], miss_max: float = MISS_MAX) -> None:
    """Raise `LawMissed` with all that miss by more."""
    missed = [f"{one.law.figure} by {one.miss_max:.0%}" for one in fitted if one.miss_max is not None and one.miss_max > miss_max]
    if missed:
        raise LawMissed(f"laws that miss what they were not fitted on by more than {miss_max:.0%}: {', '.join(missed)}")


def _counts(law: ScaleLaw, run: Observed) -> bool:
    return run.counts[law.counted_by] >= law.events_min
