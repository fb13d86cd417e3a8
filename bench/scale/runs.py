"""Which clusters are run: those that laws are fitted on, and others that check them."""

from dataclasses import dataclass, fields
from typing import Final

from bench.scale.cluster import measure
from bench.scale.laws import Observed
from bench.scale.loads import ANY_BROKER, HOT, ONE_LEADER, SETTINGS, ScaleLoad, ScaleSettings, Shape
from bench.scale.stores import Counts

FIT: Final = {ONE_LEADER: ((3, 3_000), (10, 3_000), (10, 10_000)), ANY_BROKER: ((3, 1_000), (10, 1_000), (10, 3_000))}
CHECK: Final = {ONE_LEADER: ((30, 10_000), (10, 100_000)), ANY_BROKER: ((15, 3_000), (10, 10_000))}
"""Brokers and partitions. Where every broker knows every partition, their product is what fits into one process."""
SECONDS_MIN: Final = 1.0
SECONDS_MAX: Final = 20.0
BATCHES_PER_RUN: Final = 8_000


@dataclass(frozen=True, slots=True)
class Plan:
    shape: Shape
    seconds: float
    is_fit: bool


COLLIDING: Final = (
    Plan(Shape(HOT, ANY_BROKER, 10, 20), 40.0, is_fit=True),
    Plan(Shape(HOT, ANY_BROKER, 15, 20), 20.0, is_fit=False),
)
"""Other loads collide too seldom, in the time that there is, to fit a law of conflicts on them."""


def plans(load: ScaleLoad, leader: str) -> list[Plan]:
    made = []
    for is_fit, sizes in ((True, FIT[leader]), (False, CHECK[leader])):
        for brokers, partitions in sizes:
            per_s = brokers * load.batches_per_s(brokers, partitions)
            seconds = float(round(min(SECONDS_MAX, max(SECONDS_MIN, BATCHES_PER_RUN / per_s))))
            made.append(Plan(Shape(load, leader, brokers, partitions), seconds, is_fit))
    return made


def observe(plan: Plan, settings: ScaleSettings = SETTINGS) -> Observed:
    measured = measure(plan.shape, plan.seconds, settings)
    return Observed(plan.shape, measured.seconds, {one.name: float(getattr(measured.counts, one.name)) for one in fields(Counts)})
