"""A cluster to watch: it runs under a scenario's load, with metrics and dashboards, until it is interrupted. Nothing is reconciled."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from forebay.commands.bench.load.clients import LoadClient, TaskMaker, let_go, tell_brokers
from forebay.commands.bench.load.facts import LoadTarget, StackFacts, live_brokers
from forebay.commands.bench.load.folder import new_folder, prepare_folder, run_token, write_lines
from forebay.commands.bench.load.monitoring import MonitoringPlace, monitored, write_monitoring
from forebay.commands.bench.load.running import create_topics, resolved_scenario
from forebay.commands.bench.load.scenario import EventSchedule, LoadEvent, Scenario
from forebay.commands.bench.load.stack import LoadStack
from forebay.commands.bench.load.tasks import ClientReport
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.kafka_client.options import Terminal
from forebay.kafka_client.text import align
from forebay.reference import shown_metrics
from process.settings.errors import StartError
from runtime.clock import Clock, SystemClock

KEPT_CONFIGS: Final = {"retention.ms": "3600000"}
"""Topics that are written for as long as somebody watches keep an hour of records."""
UNENDING: Final = 2**40
"""Records of a producer: more than anybody waits for."""
_LOOK_S: Final = 0.25
_COLUMNS: Final = 1_000
"""Addresses are never cut."""


def watch(file: Path, *, stores: str | None, out: Path, terminal: Terminal, show: Callable[[str], None]) -> int:
    """Run until Ctrl-C or SIGTERM. Returns the records acknowledged. `show` is given the table of addresses.

    Raise `ClientFailed` for what does not start, or ends by itself; `KeyboardInterrupt` if interrupted before everything runs.
    """
    scenario = resolved_scenario(file, is_short=False, stores=stores)
    if scenario.cluster.runs_already:
        raise ClientFailed(f"{file}: cluster.addresses name a cluster that runs: there is nothing to start and watch", exit_code=EXIT_USAGE)
    clock = SystemClock()
    folder = new_folder(out, scenario.name, clock)
    prepare_folder(folder, scenario)
    watched = _Watched(scenario, folder, terminal, clock)
    with _interrupted_by_sigterm():
        try:
            with contextlib.ExitStack() as closing:
                closing.callback(shutil.rmtree, folder / "data", ignore_errors=True)
                try:
                    watched.start(closing, show)
                    watched.run()
                finally:
                    _go_undisturbed()
        except StartError as error:
            raise ClientFailed(str(error)) from error
        except KeyboardInterrupt:
            if not watched.is_complete:
                raise
    return watched.acked


def address_table(facts: StackFacts, monitoring: MonitoringPlace, folder: Path) -> str:
    """Everything that can be opened, and where it is."""
    rows: list[tuple[str, str]] = []
    for member in facts.members:
        if member.kafka:
            rows.append((member.name.replace("-", " "), member.kafka))
            rows.append(("  HTTP", f"http://{member.http}/"))
            rows.append(("  metrics", f"http://{member.http}/metrics"))
        else:
            rows.append((f"{member.name.replace('-', ' ')} metrics", f"http://{member.http}/metrics"))
    rows.append(("Prometheus", monitoring.prometheus or f"not running: {monitoring.folder}/prometheus.yml is its configuration"))
    rows.append(("Grafana", monitoring.grafana or f"not running: import {monitoring.folder}/dashboards/*.json"))
    rows.append(("run folder", str(folder)))
    return align(("WHAT", "WHERE"), rows, columns=_COLUMNS)


class _Watched:
    def __init__(self, scenario: Scenario, folder: Path, terminal: Terminal, clock: Clock) -> None:
        self.is_complete = False
        self._scenario = scenario
        self._folder = folder
        self._terminal = terminal
        self._clock = clock
        self._schedule = EventSchedule(scenario.events, records=scenario.records)
        self._producers: list[LoadClient] = []
        self._clients: list[LoadClient] = []
        self._target: LoadTarget | None = None

    @property
    def acked(self) -> int:
        return sum(one.report.done for one in self._producers if one.report is not None)

    def start(self, closing: contextlib.ExitStack, show: Callable[[str], None]) -> None:
        """Start everything; it ends with `closing`. Raise `StartError` or `ClientFailed`."""
        self._target = stack = closing.enter_context(LoadStack(self._scenario, self._folder, clock=self._clock))
        facts = stack.facts
        create_topics(self._scenario, facts.bootstrap, configs=KEPT_CONFIGS)
        write_monitoring(self._folder / "monitoring", facts, shown_metrics())
        place, said = closing.enter_context(monitored(self._folder / "monitoring", self._folder / "logs", clock=self._clock))
        for line in said:
            self._terminal.say(line)
        # Nothing is compared here, and the files of clients would grow for as long as they run.
        tasks = TaskMaker(
            self._scenario,
            token=run_token(self._folder),
            intents=lambda _: os.devnull,
            consumed=lambda _group, _place: os.devnull,
            records=UNENDING,
        )
        for consumer in tasks.consumers(facts):
            self._clients.append(self._client(LoadClient(consumer, self._folder / "logs", _unheard), closing))
        for producer in tasks.producers(facts, self._schedule):
            self._producers.append(self._client(LoadClient(producer, self._folder / "logs", _unheard), closing))
        self._clients += self._producers
        self.is_complete = True
        show(address_table(facts, place, self._folder))
        self._terminal.say("Ctrl-C ends it")

    def run(self) -> None:
        """Until interrupted. Raise `ClientFailed` for a process that ends by itself."""
        target = self._target
        assert target is not None
        began_s = self._clock.monotonic_s()
        while True:
            now_s = self._clock.monotonic_s()
            for event in self._schedule.over(now_s):
                self._happen(target, event, f"{event.do} over", target.end)
            for event in self._schedule.due(now_s - began_s, self.acked):
                self._happen(target, event, event.do, target.begin)
                let_go(self._producers, self._schedule)
                self._schedule.happened(event, self._clock.monotonic_s())
            self._check(target.facts)
            time.sleep(_LOOK_S)

    def _happen(self, target: LoadTarget, event: LoadEvent, what: str, act: Callable[[LoadEvent], None]) -> None:
        named = what if event.target is None else f"{what} broker {event.target}"
        self._terminal.say(named)
        act(event)
        write_lines(self._folder / "events.jsonl", [{"at": self._clock.monotonic_s(), "what": named}])
        tell_brokers(self._producers, live_brokers(target.facts))

    def _check(self, facts: StackFacts) -> None:
        ended = [member.name for member in facts.members if not member.is_running() and not member.is_away]
        ended += [one.task.name for one in self._clients if one.process.poll() is not None]
        if ended:
            raise ClientFailed(f"{', '.join(ended)} ended. See {self._folder}/logs.")

    def _client(self, client: LoadClient, closing: contextlib.ExitStack) -> LoadClient:
        closing.callback(client.end)
        return client


def _unheard(_: ClientReport) -> None:
    """The last report is enough."""


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, _interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _go_undisturbed() -> None:
    """From here on things are only put away, each within a time of its own; a second Ctrl-C would leave some of them running."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
