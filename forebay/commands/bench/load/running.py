"""A load from its scenario to its verdict: topics, clients in processes of their own, what the driver tells them, and the reconciliation.

Everything that is known of a run is in a folder of its own, which stays.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay.commands.bench.load.folder import (
    CLIENTS_FILE,
    FILES,
    SUMMARY_FILE,
    LoadMember,
    LoadTarget,
    StackFacts,
    brokers_of,
    live_brokers,
    new_folder,
    prepare_folder,
    process_facts,
    read_intents,
    read_sessions,
    run_token,
    write_facts,
    write_json,
    write_lines,
    write_page,
)
from forebay.commands.bench.load.reconcile import Evidence, LoadPartition, LoadVerdict, PartitionEnds, StoredRun, reconcile
from forebay.commands.bench.load.routing import OWNERS, OwnerSets, owner_sets, remaps_between
from forebay.commands.bench.load.sampler import METRICS_AGE_MAX_S, LoadSampler, logged_counts
from forebay.commands.bench.load.scenario import HTTP, SERVICES, EventSchedule, LoadEvent, Scenario, check_consistent, read_scenario
from forebay.commands.bench.load.stack import LoadStack, RunningCluster, check_stores
from forebay.commands.bench.load.tasks import (
    ClientReport,
    ConsumerTask,
    OwnerRouting,
    ProducerTask,
    RunCollector,
    Told,
    ValueMaker,
    read_bounds,
    read_stored,
)
from forebay.kafka_client.failures import ClientFailed
from forebay.kafka_client.options import Terminal
from process.settings.errors import StartError
from runtime.clock import Clock, SystemClock

_END_WITHIN_S: Final = 60.0
STILL_S: Final = 240.0
"""A load in which nothing moves for this long has failed."""
AGREED_WITHIN_S: Final = 20.0
"""Processes go on meanwhile: what one has just asked S3 for may be in its counters or in the log alone."""
TOPICS_WITHIN_S: Final = 60.0
_LAST_LINES: Final = 5
_LOOK_S: Final = 0.1
_ASK_WITHIN_S: Final = 20.0


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


def run_load(file: Path, *, is_short: bool, stores: str | None, out: Path, terminal: Terminal) -> LoadVerdict:
    """Read the scenario and run it in a folder of its own below `out`. Raise `ClientFailed`."""
    scenario = resolved_scenario(file, is_short=is_short, stores=stores)
    clock = SystemClock()
    return LoadRun(scenario, new_folder(out, scenario.name, clock), terminal=terminal, clock=clock).run()


def resolved_scenario(file: Path, *, is_short: bool, stores: str | None) -> Scenario:
    """Raise `ClientFailed` for a mistake in the file, or if this Forebay cannot start its stores."""
    scenario = read_scenario(file)
    if is_short:
        scenario = scenario.shortened()
    if stores is not None:
        scenario = replace(scenario, stores=replace(scenario.stores, kind=stores))
        check_consistent(scenario)
    check_stores(scenario.stores.kind)
    return scenario


def create_topics(scenario: Scenario, bootstrap: str, *, may_exist: bool = False, configs: Mapping[str, str] | None = None) -> list[str]:
    """Returns the names of those that are new. `configs` are added to the scenario's. Raise `ClientFailed` if the cluster refuses one."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = [
        NewTopic(name, num_partitions=topic.partitions, replication_factor=1, config={**topic.configs, **(configs or {})})
        for topic in scenario.topics
        for name in topic.all_names
    ]
    made = []
    for name, future in admin.create_topics(new, operation_timeout=TOPICS_WITHIN_S, request_timeout=TOPICS_WITHIN_S).items():
        try:
            future.result(TOPICS_WITHIN_S)
            made.append(name)
        except KafkaException as error:
            if may_exist and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            raise ClientFailed(f'Topic "{name}" was not created: {error.args[0].str()}') from error
    return made


class LoadRun:
    """One run in `folder`. `module` is the program of the brokers."""

    def __init__(self, scenario: Scenario, folder: Path, *, terminal: Terminal, clock: Clock, module: str = "forebay") -> None:
        self._scenario = scenario
        self._folder = folder
        self._terminal = terminal
        self._clock = clock
        self._module = module
        self._token = 0
        self._topics = scenario.topics_of([topic.name for topic in scenario.topics])
        self._trouble: list[str] = []
        self._ended: set[str] = set()
        self._pids: dict[str, int] = {}
        self._writing = threading.Lock()
        self._live: dict[int, str] = {}
        self._owners: OwnerSets = {}

    def run(self) -> LoadVerdict:
        """Prepare the folder, start the cluster, load it and end it. Raise `ClientFailed` for what keeps the load from running at all."""
        prepare_folder(self._folder, self._scenario)
        try:
            if self._scenario.cluster.runs_already:
                cluster = RunningCluster(self._scenario)
                write_facts(self._folder, cluster.facts)
                verdict = self._loaded(cluster)
            else:
                with LoadStack(self._scenario, self._folder, clock=self._clock, module=self._module) as stack:
                    verdict = self._loaded(stack)
        except StartError as error:
            raise ClientFailed(str(error)) from error
        if verdict.is_good:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
        self._judged(verdict)
        return verdict

    def run_on(self, target: LoadTarget) -> LoadVerdict:
        """Load a cluster that was started for this folder before; it stays. Raise `ClientFailed`."""
        try:
            verdict = self._loaded(target, may_exist=True)
        except StartError as error:
            raise ClientFailed(str(error)) from error
        self._judged(verdict)
        return verdict

    def _judged(self, verdict: LoadVerdict) -> None:
        write_json(self._folder / SUMMARY_FILE, {**asdict(verdict), "line": verdict.line(), "name": self._scenario.name})
        write_page(self._folder, title=self._scenario.name, line=verdict.line(), faults=verdict.faults, explained=verdict.explained)
        wanted = FILES if self._scenario.stores.kind != SERVICES else (*FILES, "s3-access.log")
        for name in wanted:
            if not (self._folder / name).exists():
                self._terminal.warn(f"warning: the run has no {name}")

    def _loaded(self, target: LoadTarget, *, may_exist: bool = False) -> LoadVerdict:
        self._token = run_token(self._folder)
        create_topics(self._scenario, target.facts.bootstrap, may_exist=may_exist)
        self._begin_routing(target.facts)
        schedule = EventSchedule(self._scenario.events, records=self._scenario.records)
        tasks = TaskMaker(
            self._scenario,
            token=self._token,
            intents=lambda name: str(self._folder / "intents" / f"{name}.jsonl"),
            consumed=lambda group, place: str(self._folder / "consumed" / group / f"{place}.jsonl"),
        )
        with contextlib.ExitStack() as closing:
            file, every_s = self._folder / "samples.jsonl", self._scenario.sample_every
            sampler = LoadSampler(target, self._pids, file, topics=self._topics, every_s=every_s, clock=self._clock)
            closing.callback(sampler.stop)
            sampler.start()
            consumers = [self._client(task, closing) for task in tasks.consumers(target.facts)]
            producers = [self._client(task, closing) for task in tasks.producers(target.facts, schedule)]
            known = [process_facts("load", os.getpid()), *(process_facts(name, pid) for name, pid in self._pids.items())]
            write_json(self._folder / CLIENTS_FILE, known)
            brokers = len(brokers_of(target.facts)) or "the"
            self._terminal.say(f"{len(producers)} producers and {len(consumers)} consumers on {brokers} brokers: {self._folder}")
            self._drive(target, sampler, producers, schedule)
            bounds = self._answered(lambda: read_bounds(target.facts.bootstrap, self._topics))
            self._await_groups(target, bounds, consumers)
            for consumer in consumers:
                consumer.tell(Told(is_over=True))
            for client in (*producers, *consumers):
                if client.wait(_END_WITHIN_S) != 0:
                    self._trouble.append(f"{client.task.name} did not end in order: see logs/{client.task.name}.log")
            bootstrap = target.facts.bootstrap
            stored = self._answered(lambda: list(read_stored(bootstrap, self._topics, self._collector(), clock=self._clock)))
            write_lines(self._folder / "stored.jsonl", stored)
            committed = {
                group.group: self._answered(partial(self._committed, bootstrap, group.group)) for group in self._scenario.consumers
            }
            return self._verdict(target, sampler, bounds, stored, committed)

    def _drive(self, target: LoadTarget, sampler: LoadSampler, producers: Sequence[LoadClient], schedule: EventSchedule) -> None:
        """Until all producers have ended and all events are over."""
        began_s = moved_s = self._clock.monotonic_s()
        before = -1
        while True:
            now_s = self._clock.monotonic_s()
            acked = sum(one.report.done for one in producers if one.report is not None)
            if acked != before:
                before, moved_s = acked, now_s
            for event in schedule.over(now_s):
                self._happen(target, sampler, producers, event, f"{event.do} over", target.end)
            is_over = all(one.process.poll() is not None for one in producers)
            for event in schedule.due(now_s - began_s, acked):
                if event.do in {"stop", "roll"}:
                    sampler.sample()
                self._happen(target, sampler, producers, event, event.do, target.begin)
                let_go(producers, schedule)
                schedule.happened(event, self._clock.monotonic_s())
            if is_over and not schedule.is_undoing:
                break
            self._check_members(target.facts.members)
            if now_s - moved_s > STILL_S:
                self._trouble.append(f"nothing was acknowledged for {STILL_S:.0f} s")
                break
            time.sleep(_LOOK_S)
        for event in schedule.pending:
            self._trouble.append(f"the event {event.do} at {event.at} did not happen: the load was over before")

    def _happen(
        self,
        target: LoadTarget,
        sampler: LoadSampler,
        producers: Sequence[LoadClient],
        event: LoadEvent,
        what: str,
        act: Callable[[LoadEvent], None],
    ) -> None:
        named = what if event.target is None else f"{what} broker {event.target}"
        self._terminal.say(named)
        at = self._clock.monotonic_s()
        act(event)
        line = {"at": at, "what": named, "event": event.do, "target": event.target, "took_s": self._clock.monotonic_s() - at}
        write_lines(self._folder / "events.jsonl", [line])
        self._route(target.facts, producers, named)
        # A life that no sample has seen would be unknown in the access log.
        sampler.sample()

    def _begin_routing(self, facts: StackFacts) -> None:
        routing = self._scenario.routing
        told: dict[str, Any] = {"mode": routing.mode}
        if routing.mode == OWNERS:
            self._live = live_brokers(facts)
            self._owners = self._owner_sets()
            sets = [{"topic": topic, "partition": partition, "owners": owners} for (topic, partition), owners in self._owners.items()]
            told |= {"k": routing.k, "pick": routing.pick, "seed": routing.seed, "brokers": self._live, "sets": sets}
        write_json(self._folder / "routing.json", told)

    def _route(self, facts: StackFacts, producers: Sequence[LoadClient], what: str) -> None:
        """Tell producers which brokers there are now, if they choose among them, and write down which sets changed."""
        live = live_brokers(facts)
        if self._scenario.routing.mode != OWNERS or live == self._live:
            return
        before, self._live = self._owners, live
        self._owners = self._owner_sets()
        tell_brokers(producers, live)
        at = self._clock.monotonic_s()
        remaps = remaps_between(before, self._owners)
        write_lines(self._folder / "remaps.jsonl", [{"at": at, "what": what, **one._asdict()} for one in remaps])

    def _owner_sets(self) -> OwnerSets:
        places = [(topic, partition) for topic, partitions in self._topics.items() for partition in range(partitions)]
        return owner_sets(places, self._live, k=self._scenario.routing.k, seed=self._scenario.routing.seed)

    def _check_members(self, members: Sequence[LoadMember]) -> None:
        """Name a process that ended by itself, once."""
        for member in members:
            if not member.is_running() and not member.is_away and member.name not in self._ended:
                self._ended.add(member.name)
                lines = Path(member.log).read_text(errors="replace").splitlines()[-_LAST_LINES:]
                words = "".join(f"\n  {line}" for line in lines)
                self._trouble.append(f"{member.name} ended by itself. The end of its log {member.log}:{words}")

    def _await_groups(self, target: LoadTarget, bounds: Sequence[PartitionEnds], consumers: Sequence[LoadClient]) -> None:
        """Until every group has committed every end, or nothing moves any more."""
        for entry in self._scenario.consumers:
            topics = self._scenario.topics_of(entry.topics)
            wanted = {(one.topic, one.partition): one.end for one in bounds if one.topic in topics and one.end}
            moved_s, before = self._clock.monotonic_s(), -1
            while True:
                committed = self._answered(partial(self._committed, target.facts.bootstrap, entry.group))
                if all(committed.get(place) == end for place, end in wanted.items()):
                    break
                moved = sum(one.report.done for one in consumers if one.report is not None) + sum(committed.values())
                if moved != before:
                    before, moved_s = moved, self._clock.monotonic_s()
                elif self._clock.monotonic_s() - moved_s > STILL_S / 4:
                    break
                time.sleep(_LOOK_S)

    def _verdict(
        self,
        target: LoadTarget,
        sampler: LoadSampler,
        bounds: Sequence[PartitionEnds],
        stored: Sequence[StoredRun],
        committed: Mapping[str, Mapping[LoadPartition, int]],
    ) -> LoadVerdict:
        """Compare until meters and log agree, or for a while: what is asked for meanwhile may be in one of the two."""
        sent, acked, doubtful = read_intents(self._folder / "intents")
        give_up_s = self._clock.monotonic_s() + AGREED_WITHIN_S
        groups = {entry.group: self._scenario.topics_of(entry.topics) for entry in self._scenario.consumers}
        while True:
            time.sleep(METRICS_AGE_MAX_S)
            alive, silent = sampler.sample()
            lines = target.logged()
            prefix = urlsplit(target.facts.storage_url).path.lstrip("/") + "/"
            evidence = Evidence(
                sent=sent,
                acked=acked,
                doubtful=doubtful,
                stored=stored,
                bounds=bounds,
                idempotent=idempotent_producers(self._scenario),
                groups={group: read_sessions(self._folder / "consumed", group) for group in groups},
                group_topics={group: frozenset(topics) for group, topics in groups.items()},
                committed=committed,
                counts=sampler.counts(alive) if target.facts.members else None,
                logged=None if lines is None else logged_counts(lines, prefix),
                trouble=[*self._trouble, *(f"{name} runs, and does not answer" for name in silent)],
            )
            verdict = reconcile(evidence)
            if verdict.is_good or self._clock.monotonic_s() > give_up_s:
                return verdict

    def _committed(self, bootstrap: str, group: str) -> dict[LoadPartition, int]:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=_ASK_WITHIN_S).values()
        found = future.result(_ASK_WITHIN_S)
        return {(one.topic, one.partition): one.offset for one in found.topic_partitions if one.offset >= 0}

    def _answered(self, ask: Callable[[], Any]) -> Any:
        """Ask again while a coordinator or broker moves. Raise `ClientFailed` after a while."""
        give_up_s = self._clock.monotonic_s() + _END_WITHIN_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                if self._clock.monotonic_s() > give_up_s:
                    raise ClientFailed(
                        f"The cluster does not answer after the load: {error.args[0].str()}. See {self._folder}/logs."
                    ) from error
                time.sleep(_LOOK_S)

    def _client(self, task: ProducerTask | ConsumerTask, closing: contextlib.ExitStack) -> LoadClient:
        client = LoadClient(task, self._folder / "logs", self._heard)
        closing.callback(client.end)
        self._pids[task.name] = client.process.pid
        return client

    def _heard(self, report: ClientReport) -> None:
        with self._writing:
            write_lines(self._folder / "client.jsonl", [report])

    def _collector(self) -> RunCollector:
        sizes = value_sizes(self._scenario)
        return RunCollector(
            run=self._token, makers={number: ValueMaker(run=self._token, producer=number, size=size) for number, size in sizes.items()}
        )
