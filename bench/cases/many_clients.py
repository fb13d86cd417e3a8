"""Many connections with one request under way on each, as clients that wait for their answers; then the same requests at a fixed rate."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench import meter, quantiles
from bench.cases.case import Plan, metered
from bench.pacing import Paced, paced, staggered
from bench.processes import HOST, Target
from bench.quantiles import P50, P99
from bench.results import Fact, Run
from bench.wire import Driver, Refused

CLIENTS: Final = 200
PACED_S: Final = 5
WARM_UP: Final = 8

Frames = Sequence[Sequence[bytes]]
Ask = Callable[[int, int], bytes]
"""The next request of a connection, by its number and by how many requests the run has sent before on each."""
Check = Callable[[bytes], None]
"""Raises if that is not the answer."""


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` as fast as they are answered, then `paced_per_s` for PACED_S. `ask` is called before the clock starts."""

    ask: Ask
    check: Check
    requests: int
    paced_per_s: float
    clients: int = CLIENTS


class Loaded:
    """The connections of one load to one broker, open from `begin` to `close`."""

    def __init__(self, target: Target, load: Load, plan: Plan, driver: Driver | None = None) -> None:
        self._target = target
        self._load = load
        self._plan = plan
        self._sent = 0
        self.driver = driver or Driver(HOST, target.port, connections=load.clients)

    def warm_up(self) -> None:
        self._check(self.driver.run(self._frames(self._plan.scaled(self._load.requests) // WARM_UP), depth=1))

    def run(self) -> Run:
        frames = self._frames(self._plan.scaled(self._load.requests))
        answers: list[list[bytes]] = []
        work = metered(
            self._target,
            lambda: answers.extend(self.driver.run(frames, depth=1)),
            records=0,
            requests=sum(map(len, frames)),
        )
        self._check(answers)
        facts: dict[str, Fact] = {"us_per_request": work.cpu_s * 1e6 / work.requests, "requests_per_s": work.requests / work.seconds}
        return Run(work, None, meter.peak_rss_bytes(self._target.pid), facts | self.paced())

    def paced(self) -> dict[str, Fact]:
        """Latencies from the moment a request was due to its answer."""
        per_s = self._load.paced_per_s
        answered = paced(self.driver, staggered(self._frames(self._plan.scaled(int(PACED_S * per_s))), per_s=per_s))
        self._check([lane.answers for lane in answered])
        return latencies(answered)

    def close(self) -> None:
        self.driver.close()

    def _frames(self, requests: int) -> Frames:
        count = max(1, math.ceil(requests / self._load.clients))
        first, self._sent = self._sent, self._sent + count
        return [[self._load.ask(number, first + position) for position in range(count)] for number in range(self._load.clients)]

    def _check(self, answers: Frames) -> None:
        for answer in itertools.chain.from_iterable(answers):
            self._load.check(answer)


def latencies(answered: Sequence[Paced], *, name: str = "") -> dict[str, Fact]:
    seconds = [took_s for lane in answered for took_s in lane.seconds]
    return {
        f"{name}p50_ms": 1e3 * quantiles.of_samples(seconds, P50),
        f"{name}p99_ms": 1e3 * quantiles.of_samples(seconds, P99),
        f"{name}max_ms": 1e3 * max(seconds),
    }


def settings_of(load: Load) -> dict[str, Fact]:
    return {"client": "raw socket", "connections": load.clients, "in_flight": 1, "paced_per_s": load.paced_per_s}


def refuse_errors(errors: Sequence[int], what: str) -> None:
    if refused := [error for error in errors if error]:
        raise Refused(f"{what}: errors={sorted(set(refused))}")
