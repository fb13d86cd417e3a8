"""Which call meets which fault: drawn from the seed, call by call.

Every seed draws its own rates and leaves some kinds out, so that runs differ in kind and not only in order.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from runtime.supervision import Nursery
from sim.history import History


class Fault(Enum):
    NONE = "none"
    REQUEST_LOST = "request lost"  # nothing happens; the caller is left in doubt
    REPLY_LOST = "reply lost"  # it happens; the caller is left in doubt
    LATE = "late"  # the caller is left in doubt, and then it happens
    REFUSED = "refused"  # nothing happens, and the caller learns it
    SLOW = "slow"  # it happens, after a while
    DAMAGED = "damaged"  # what was read comes with one byte changed
    MISSING = "missing"  # what is there is said not to be


WRITE_FAULTS: Final = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.LATE, Fault.REFUSED, Fault.SLOW)
READ_FAULTS: Final = (Fault.REFUSED, Fault.SLOW)
OUTAGE_FAULTS: Final = (Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST)
LATE_S: Final = (0.01, 12.0)
SLOW_S: Final = (0.05, 14.0)
"""Both reach past the deadlines of the code under test (10 s)."""
CLOSE_S: Final = (0.01, 3.0)
"""What it takes to end a session, on every shard in turn."""
SLUGGISH_S: Final = (0.02, 1.0)
SLUGGISH_RATE: Final = 0.25
SLUGGISH_SCAN_RATE: Final = 0.6
"""A store that is slow often and never for long: what others do meanwhile is more than a request or two."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`rate_max`: of each kind of fault, per call. `nemesis_s`: mean time between crashes, pauses and outages; 0 for none."""

    rate_max: float
    nemesis_s: float


PROFILES: Final = {"none": Profile(0.0, 0.0), "usual": Profile(0.04, 3.0), "harsh": Profile(0.15, 1.2)}


@dataclass(frozen=True, slots=True)
class Temper:
    """How a port behaves: by its profile, but for some `rates`. `is_sluggish`: slow, and late, often and never for long."""

    profile: Profile
    is_sluggish: bool = False
    rates: Mapping[Fault, float] = field(default_factory=dict)


class FaultPlan:
    """The faults of one port, shared by the brokers."""

    def __init__(self, chance: random.Random, temper: Temper, loop: asyncio.AbstractEventLoop) -> None:
        profile = temper.profile
        self._chance = chance
        self._loop = loop
        self._mean_latency_s = chance.uniform(0.001, 0.01)
        self._rates = {fault: chance.uniform(0, profile.rate_max) if chance.random() < 0.6 else 0.0 for fault in WRITE_FAULTS}
        self._has_faults = bool(profile.rate_max)
        self._hint_rate = chance.choice((0.0, 0.3, 1.0)) if profile.rate_max else 0.0
        self._slow_s, self._late_s, self._scan_rate = SLOW_S, LATE_S, 0.0
        if profile.rate_max and temper.is_sluggish:
            self._slow_s = self._late_s = SLUGGISH_S
            self._scan_rate = SLUGGISH_SCAN_RATE
            self._rates |= {Fault.SLOW: SLUGGISH_RATE, Fault.LATE: chance.choice((0.0, SLUGGISH_RATE))}
        self._rates |= temper.rates
        self._outage = Fault.NONE
        self._outage_until_s = 0.0

    def heal(self) -> None:
        """No further faults; what is late or slow already still is."""
        self._rates = dict.fromkeys(self._rates, 0.0)
        self._hint_rate = 0.0
        self._has_faults = False
        self._scan_rate = 0.0
        self._outage_until_s = 0.0

    def begin_outage(self, duration_s: float) -> Fault:
        """Every call fails for a while, all in the same way."""
        self._outage = self._chance.choice(OUTAGE_FAULTS)
        self._outage_until_s = self._loop.time() + duration_s
        return self._outage

    def of_write(self) -> Fault:
        return self._draw(WRITE_FAULTS)

    def of_read(self) -> Fault:
        fault = self._draw(READ_FAULTS)
        return fault if fault in (Fault.NONE, Fault.SLOW) else Fault.REFUSED

    def of_scan(self) -> Fault:
        """As of any read, but that a sluggish store takes its time for most of those that name no keys."""
        fault = self.of_read()
        is_slow = fault is Fault.NONE and self._scan_rate and self._chance.random() < self._scan_rate
        return Fault.SLOW if is_slow else fault

    def hint_delays_s(self) -> tuple[float, ...]:
        """When one hint is delivered: never, once, or more often."""
        if self._chance.random() >= self._hint_rate:
            return (0.0,)
        return self._chance.choice(((), (self.delay_s(LATE_S),), (0.0, self.delay_s(LATE_S))))

    def latency_s(self) -> float:
        return self._chance.expovariate(1 / self._mean_latency_s)

    def slow_s(self) -> float:
        return self.delay_s(self._slow_s)

    def late_s(self) -> float:
        return self.delay_s(self._late_s)

    def close_s(self) -> float:
        return self.delay_s(CLOSE_S) if self._has_faults else 0.0

    def delay_s(self, bounds_s: tuple[float, float]) -> float:
        """Between the bounds, each order of magnitude as likely as the next."""
        return math.exp(self._chance.uniform(math.log(bounds_s[0]), math.log(bounds_s[1])))

    def coin(self) -> bool:
        return self._chance.random() < 0.5

    def place(self, count: int) -> int:
        """One of `count` places."""
        return self._chance.randrange(count)

    def _draw(self, kinds: tuple[Fault, ...]) -> Fault:
        if self._loop.time() < self._outage_until_s:
            return self._outage
        drawn = self._chance.random()
        for fault in kinds:
            drawn -= self._rates[fault]
            if drawn < 0:
                return fault
        return Fault.NONE


class ObjectFaults(FaultPlan):
    """The faults of an object store, whose answers may be wrong in themselves."""

    def __init__(self, chance: random.Random, temper: Temper, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(chance, temper, loop)
        self.lied_about: set[str] = set()
        """The objects that were damaged or missing in an answer alone."""
        self._lies = {
            fault: chance.choice((0.0, 0.0, 0.05, 0.3)) if temper.profile.rate_max else 0.0 for fault in (Fault.DAMAGED, Fault.MISSING)
        }

    def heal(self) -> None:
        super().heal()
        self._lies = dict.fromkeys(self._lies, 0.0)

    def of_get(self) -> Fault:
        fault = self.of_read()
        if fault is not Fault.NONE:
            return fault
        drawn = self._chance.random()
        for lie, rate in self._lies.items():
            drawn -= rate
            if drawn < 0:
                return lie
        return Fault.NONE


class Wire:
    """The way between one broker and one store: latency on every call, both ways, and a gate that is shut while the broker is paused.

    What was sent arrives though its sender is gone: late requests belong to the world and not to the broker.
    """

    def __init__(self, name: str, plan: FaultPlan, gate: asyncio.Event, world: Nursery, history: History) -> None:
        self.plan = plan
        self._name = name
        self._gate = gate
        self._world = world
        self._history = history

    @property
    def now_s(self) -> float:
        return self._history.now_s

    def note(self, call: str, fault: Fault) -> None:
        self._history.trace(self._name, call, fault.value)

    def legs(self, fault: Fault) -> tuple[Fault, Fault]:
        """Where a fault strikes, on the way there or back: what is slow may be old when it arrives, or done long before anybody hears."""
        return (Fault.NONE, fault) if fault is Fault.SLOW and self.plan.coin() else (fault, Fault.NONE)

    async def travel(self, fault: Fault = Fault.NONE) -> None:
        await asyncio.sleep(self.plan.latency_s() if fault is not Fault.SLOW else self.plan.slow_s())
        await self._gate.wait()

    def deliver_later(self, delivery: Callable[[], Awaitable[object]]) -> None:
        self._world.spawn(self._deliver(self.plan.late_s(), delivery), name="late")

    async def _deliver(self, delay_s: float, delivery: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(delay_s)
        self._history.trace(self._name, "late arrival", "")
        await delivery()
