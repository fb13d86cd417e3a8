"""The clients of a load, each a process of its own, and what the driver tells them."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.commands.bench.load.facts import StackFacts, brokers_of, live_brokers
from forebay.commands.bench.load.routing import OWNERS
from forebay.commands.bench.load.scenario import HTTP, EventSchedule, Scenario
from forebay.commands.bench.load.tasks import ClientReport, ConsumerTask, OwnerRouting, ProducerTask, Told

_END_WITHIN_S: Final = 60.0


class LoadClient:
    """A producer or consumer in a process of its own, and the last that it said."""

    def __init__(self, task: ProducerTask | ConsumerTask, logs: Path, heard: Callable[[ClientReport], None]) -> None:
        self.task = task
        self.report: ClientReport | None = None
        self._heard = heard
        with (logs / f"{task.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forebay.commands.bench.load.client"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._say(msgspec.json.encode(task))
        self._thread = threading.Thread(target=self._listen, name=task.name, daemon=True)
        self._thread.start()

    def tell(self, told: Told) -> None:
        self._say(msgspec.json.encode(told))

    def wait(self, within_s: float) -> int | None:
        """Its exit code; None if it has not ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(within_s)
            self._thread.join(within_s)
            return code
        return None

    def end(self) -> None:
        """By force, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(_END_WITHIN_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            # It has ended, which its exit code tells.
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.report = msgspec.json.decode(line, type=ClientReport)
            self._heard(self.report)


class TaskMaker:
    """The tasks of all clients of a scenario. `intents` and `consumed` are the files of a client by its name."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        token: int,
        intents: Callable[[str], str],
        consumed: Callable[[str, int], str],
        records: int | None = None,
    ) -> None:
        """`records`: of each producer, in place of those that the scenario says."""
        self._scenario = scenario
        self._token = token
        self._intents = intents
        self._consumed = consumed
        self._records = records

    def producers(self, facts: StackFacts, schedule: EventSchedule) -> Iterator[ProducerTask]:
        scenario, routing = self._scenario, self._scenario.routing
        number = 0
        for entry in scenario.producers:
            for place in range(entry.count):
                records = self._records or entry.records // entry.count + (place < entry.records % entry.count)
                yield ProducerTask(
                    name=f"producer-{number}",
                    number=number,
                    run=self._token,
                    bootstrap=facts.bootstrap,
                    brokers=live_brokers(facts),
                    routing=OwnerRouting(k=routing.k, pick=routing.pick, seed=routing.seed) if routing.mode == OWNERS else None,
                    topics=scenario.topics_of(entry.topics),
                    records=records,
                    until=schedule.until(records),
                    producers=sum(one.count for one in scenario.producers),
                    rate=None if entry.rate is None else entry.rate / entry.count,
                    phases=[(phase.seconds, phase.rate_factor) for phase in scenario.phases],
                    size=entry.size,
                    keys=entry.keys,
                    codec=entry.codec,
                    idempotent=entry.idempotent,
                    linger_ms=entry.linger_ms,
                    uses_http=entry.client == HTTP,
                    file=self._intents(f"producer-{number}"),
                )
                number += 1

    def consumers(self, facts: StackFacts) -> Iterator[ConsumerTask]:
        for entry in self._scenario.consumers:
            for place in range(entry.count):
                yield ConsumerTask(
                    name=f"group-{entry.group}-{place}",
                    number=place,
                    group=entry.group,
                    run=self._token,
                    bootstrap=facts.bootstrap,
                    http=[one.http for one in brokers_of(facts)],
                    topics=list(self._scenario.topics_of(entry.topics)),
                    commits_each=entry.commit == "each",
                    uses_http=entry.client == HTTP,
                    sizes=value_sizes(self._scenario),
                    file=self._consumed(entry.group, place),
                )


def value_sizes(scenario: Scenario) -> dict[int, int]:
    """Bytes of the values of each producer, by its number."""
    return dict(enumerate(entry.size for entry in scenario.producers for _ in range(entry.count)))


def idempotent_producers(scenario: Scenario) -> frozenset[int]:
    """The numbers of those."""
    flags = [entry.idempotent for entry in scenario.producers for _ in range(entry.count)]
    return frozenset(number for number, is_idempotent in enumerate(flags) if is_idempotent)


def let_go(producers: Sequence[LoadClient], schedule: EventSchedule) -> None:
    """Tell producers how far they may go now."""
    for one in producers:
        if isinstance(one.task, ProducerTask):
            one.tell(Told(until=schedule.until(one.task.records)))


def tell_brokers(producers: Sequence[LoadClient], live: Mapping[int, str]) -> None:
    """Tell those that choose their broker which ones there are."""
    for one in producers:
        if isinstance(one.task, ProducerTask) and one.task.routing is not None:
            one.tell(Told(brokers=dict(live)))
