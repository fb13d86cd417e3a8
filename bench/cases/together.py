"""What 200 group members and the clients beside them ask of one broker at once, each at a quarter of the rate it is to reach alone."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench import clients, meter
from bench.cases.case import Case, Plan, fresh_broker, metered
from bench.cases.groups import COMMITS_PER_S_LEAST, GROUPS, HEARTBEATS_PER_S_LEAST, TOPIC, Layout, commits, heartbeats, members
from bench.cases.list_offsets import LISTED_PER_S_LEAST, listing
from bench.cases.many_clients import CLIENTS, Load, latencies
from bench.cases.metadata import NAMES, PARTITIONS, describing
from bench.pacing import Paced, Schedule, paced, staggered
from bench.processes import HOST
from bench.results import CaseResult, Fact, Run
from bench.stores import DISK, KAFKA, NATIVE
from bench.wire import Driver

SECONDS: Final = 10
METADATA_PER_S: Final = 5.0
CONNECTIONS: Final = {"commit": GROUPS, "list_offsets": 20, "metadata": 4}
"""Heartbeats use the connections of their members."""
LAYOUT: Final = Layout(GROUPS)


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind of request at one rate, on connections of its own."""

    name: str
    load: Load
    connections: int
    per_s: float

    def schedules(self, seconds: float, *, first: int) -> list[Schedule]:
        """`first`: how many requests were sent before on each connection."""
        count = max(1, int(self.per_s * seconds / self.connections))
        frames = [[self.load.ask(number, first + position) for position in range(count)] for number in range(self.connections)]
        return staggered(frames, per_s=self.per_s)


def _run(plan: Plan, store: str) -> CaseResult:
    seconds = SECONDS * plan.scale
    with fresh_broker(plan, store, {}) as (_, target), contextlib.ExitStack() as stack:
        clients.create_served_topics(target.bootstrap, [TOPIC], LAYOUT.partitions)
        clients.create_served_topics(target.bootstrap, NAMES, PARTITIONS)
        driver, joined = stack.enter_context(members(HOST, target.port, LAYOUT))
        others = stack.enter_context(contextlib.closing(Driver(HOST, target.port, connections=sum(CONNECTIONS.values()))))
        everybody = Everybody(driver, others)
        streams = [
            Stream("heartbeat", heartbeats(joined, LAYOUT), CLIENTS, HEARTBEATS_PER_S_LEAST / 4),
            Stream("commit", commits(joined, LAYOUT), CONNECTIONS["commit"], COMMITS_PER_S_LEAST / 4),
            Stream("list_offsets", listing(TOPIC, LAYOUT.partitions), CONNECTIONS["list_offsets"], LISTED_PER_S_LEAST / 4),
            Stream("metadata", describing(NAMES), CONNECTIONS["metadata"], METADATA_PER_S),
        ]
        everybody.ask(streams, seconds / 5)
        runs = []
        for _ in range(plan.repeats):
            facts: dict[str, Fact] = {}
            work = metered(
                target,
                lambda facts=facts: facts.update(everybody.ask(streams, seconds)),  # type: ignore[misc]
                records=0,
                requests=sum(int(stream.per_s * seconds) for stream in streams),
            )
            runs.append(Run(work, None, meter.peak_rss_bytes(target.pid), {**facts, "cpu_share": work.cpu_s / work.seconds}))
    settings: dict[str, Fact] = {"client": "raw socket", "members": CLIENTS, "groups": GROUPS, "seconds": seconds}
    settings |= {f"{stream.name}_per_s": stream.per_s for stream in streams}
    what = f"Heartbeat, OffsetCommit, ListOffsets and Metadata of 1,000 partitions at once, {CLIENTS} members of {GROUPS} groups"
    return CaseResult("members-together", store, what, settings, runs)


class Everybody:
    """The members' connections and those of the others, as one driver."""

    def __init__(self, driver: Driver, others: Driver) -> None:
        self.sockets = (*driver.sockets, *others.sockets)
        self._sent: dict[str, int] = {}

    def ask(self, streams: list[Stream], seconds: float) -> dict[str, Fact]:
        """All streams at once; the latencies of each."""
        schedules = [stream.schedules(seconds, first=self._sent.get(stream.name, 0)) for stream in streams]
        answered = iter(paced(self, [schedule for of_stream in schedules for schedule in of_stream]))
        facts: dict[str, Fact] = {}
        for stream, of_stream in zip(streams, schedules, strict=True):
            lanes = [next(answered) for _ in of_stream]
            _check(lanes, stream.load.check)
            facts |= latencies(lanes, name=f"{stream.name}_")
            self._sent[stream.name] = self._sent.get(stream.name, 0) + len(of_stream[0].frames)
        return facts


def _check(lanes: list[Paced], check: Callable[[bytes], None]) -> None:
    for lane in lanes:
        for answer in lane.answers:
            check(answer)


CASES: Final = (Case("members-together", (DISK, NATIVE, KAFKA), _run),)
