"""A load from its scenario to its verdict. Everything that is known of it is in a folder of its own, which stays."""

import contextlib
import importlib.metadata
import itertools
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import libversion as librdkafka_version
from confluent_kafka.admin import AdminClient

from forebay.commands.bench.load.client import ClientReport, ConsumerTask, ProducerTask, Told
from forebay.commands.bench.load.page import write_page
from forebay.commands.bench.load.reconcile import (
    AckedRange,
    DoubtfulRange,
    Evidence,
    LoadPartition,
    LoadVerdict,
    PartitionEnds,
    SentRange,
    SessionBegan,
    SessionCommitted,
    SessionEvent,
    SessionRead,
    StoredRun,
    reconcile,
)
from forebay.commands.bench.load.records import RunCollector, ValueMaker, read_bounds, read_stored
from forebay.commands.bench.load.sampler import METRICS_AGE_MAX_S, LoadSampler, logged_counts
from forebay.commands.bench.load.scenario import HTTP, LoadEvent, Scenario, check_consistent, read_scenario, written_out
from forebay.commands.bench.load.stack import LoadStack, check_stores
from forebay.kafka_client.failures import ClientFailed
from forebay.kafka_client.options import Terminal
from process.settings.errors import StartError
from runtime.clock import Clock, SystemClock
from runtime.version import forebay_version

STILL_S: Final = 240.0
"""A load in which nothing moves for this long has failed."""
AGREED_WITHIN_S: Final = 20.0
"""Processes go on meanwhile: what one has just asked S3 for may be in its counters or in the log alone."""
SENT_AHEAD_PERCENT: Final = 25
"""Producers wait so far behind an event that counts acknowledgements: it happens while records are under way."""
FILES: Final = (
    *("stack.json", "scenario.yaml", "versions.json", "environment.json", "routing.json", "logs", "samples.jsonl", "client.jsonl"),
    *("intents", "consumed", "stored.jsonl", "remaps.jsonl", "events.jsonl", "summary.json", "index.html"),
)
_ENVIRONMENT: Final = ("LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "UV_PYTHON", "GOMAXPROCS", "CI")
"""What of the environment is written down: nothing that may be secret."""
_LIBRARIES: Final = ("confluent-kafka", "aiohttp", "obstore", "grpcio", "msgspec", "uvloop")
_LOOK_S: Final = 0.1
_END_WITHIN_S: Final = 60.0
_ASK_WITHIN_S: Final = 20.0


def run_load(file: Path, *, is_short: bool, stores: str | None, out: Path, terminal: Terminal) -> LoadVerdict:
    """Read the scenario and run it in a folder of its own below `out`. Raise `ClientFailed`."""
    scenario = read_scenario(file)
    if is_short:
        scenario = scenario.shortened()
    if stores is not None:
        scenario = replace(scenario, stores=replace(scenario.stores, kind=stores))
        check_consistent(scenario)
    check_stores(scenario.stores.kind)
    clock = SystemClock()
    began = datetime.fromtimestamp(clock.now_ms() / 1_000, tz=UTC)
    return LoadRun(scenario, _new_folder(out, f"{began:%Y-%m-%dT%H-%M-%SZ}-{scenario.name}"), terminal=terminal, clock=clock).run()


def _new_folder(out: Path, name: str) -> Path:
    """One that was not there: of two runs in a second the later has a number."""
    out.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = out / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder.resolve()
    raise AssertionError("numbers do not end")


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


class LoadRun:
    """One run in `folder`, which is made. `module` is the program of the brokers."""

    def __init__(self, scenario: Scenario, folder: Path, *, terminal: Terminal, clock: Clock, module: str = "forebay") -> None:
        self._scenario = scenario
        self._folder = folder
        self._terminal = terminal
        self._clock = clock
        self._module = module
        self._token = int.from_bytes(os.urandom(4), "big")
        self._topics = scenario.topics_of([topic.name for topic in scenario.topics])
        self._trouble: list[str] = []
        self._pids: dict[str, int] = {}
        self._writing = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._idempotent: set[int] = set()

    def run(self) -> LoadVerdict:
        """Raise `ClientFailed` for what keeps the load from running at all."""
        self._prepare()
        try:
            with LoadStack(self._scenario, self._folder, clock=self._clock, module=self._module) as stack:
                self._write("stack.json", stack.facts())
                verdict = self._loaded(stack)
        except StartError as error:
            raise ClientFailed(str(error)) from error
        if verdict.is_good:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
        self._write("summary.json", {**asdict(verdict), "line": verdict.line(), "name": self._scenario.name})
        write_page(self._folder, title=self._scenario.name, line=verdict.line(), faults=verdict.faults, explained=verdict.explained)
        wanted = FILES if self._scenario.stores.kind != "services" else (*FILES, "s3-access.log")
        for name in wanted:
            if not (self._folder / name).exists():
                self._terminal.warn(f"warning: the run has no {name}")
        return verdict

    def _loaded(self, stack: LoadStack) -> LoadVerdict:
        stack.create_topics()
        with contextlib.ExitStack() as closing:
            (self._folder / "samples.jsonl").touch()
            sampler = LoadSampler(stack, self._pids, self._folder / "samples.jsonl", every_s=self._scenario.sample_every, clock=self._clock)
            closing.callback(sampler.stop)
            sampler.start()
            consumers = [self._client(task, closing) for task in self._consumer_tasks(stack)]
            producers = [self._client(task, closing) for task in self._producer_tasks(stack)]
            self._terminal.say(f"{len(producers)} producers and {len(consumers)} consumers on {len(stack.brokers)} brokers: {self._folder}")
            self._drive(stack, sampler, producers)
            bounds = self._answered(lambda: read_bounds(stack.bootstrap, self._topics))
            self._await_groups(stack, bounds, consumers)
            for consumer in consumers:
                consumer.tell(Told(is_over=True))
            for client in (*producers, *consumers):
                if client.wait(_END_WITHIN_S) != 0:
                    self._trouble.append(f"{client.task.name} did not end in order: see logs/{client.task.name}.log")
            stored = self._answered(lambda: list(read_stored(stack.bootstrap, self._topics, self._collector(), clock=self._clock)))
            _write_lines(self._folder / "stored.jsonl", stored)
            committed = {group.group: self._answered(partial(self._committed, stack, group.group)) for group in self._scenario.consumers}
            return self._judged(stack, sampler, bounds, stored, committed)

    def _drive(self, stack: LoadStack, sampler: LoadSampler, producers: Sequence[LoadClient]) -> None:
        """Until all producers have ended and all events are over."""
        began_s = moved_s = self._clock.monotonic_s()
        pending = deque(sorted(self._scenario.events, key=lambda event: (event.at.acked_percent or 0, event.at.after_s or 0)))
        undoing: list[tuple[float, LoadEvent]] = []
        before = -1
        while True:
            now_s = self._clock.monotonic_s()
            acked = sum(one.report.done for one in producers if one.report is not None)
            if acked != before:
                before, moved_s = acked, now_s
            for due_s, event in list(undoing):
                if now_s >= due_s:
                    undoing.remove((due_s, event))
                    self._happen(stack, sampler, event, f"{event.do} over", stack.end)
            is_over = all(one.process.poll() is not None for one in producers)
            for event in list(pending):
                if self._is_due(event, now_s - began_s, acked):
                    pending.remove(event)
                    if event.do in {"stop", "roll"}:
                        sampler.sample()
                    self._happen(stack, sampler, event, event.do, stack.begin)
                    self._let_go(producers, pending)
                    if event.lasts_s is not None:
                        undoing.append((self._clock.monotonic_s() + event.lasts_s, event))
            if is_over and not undoing:
                break
            self._check_members(stack)
            if now_s - moved_s > STILL_S:
                self._trouble.append(f"nothing was acknowledged for {STILL_S:.0f} s")
                break
            time.sleep(_LOOK_S)
        for event in pending:
            self._trouble.append(f"the event {event.do} at {event.at} did not happen: the load was over before")

    def _is_due(self, event: LoadEvent, elapsed_s: float, acked: int) -> bool:
        if event.at.after_s is not None:
            return elapsed_s >= event.at.after_s
        return acked * 100 >= (event.at.acked_percent or 0) * self._scenario.records

    def _let_go(self, producers: Sequence[LoadClient], pending: Sequence[LoadEvent]) -> None:
        for one in producers:
            if isinstance(one.task, ProducerTask):
                one.tell(Told(until=_until(one.task.records, pending)))

    def _happen(self, stack: LoadStack, sampler: LoadSampler, event: LoadEvent, what: str, act: Callable[[LoadEvent], None]) -> None:
        target = "" if event.target is None else f" broker {event.target}"
        self._terminal.say(f"{what}{target}")
        at = self._clock.monotonic_s()
        act(event)
        line = {"at": at, "what": f"{what}{target}", "event": event.do, "target": event.target, "took_s": self._clock.monotonic_s() - at}
        _write_lines(self._folder / "events.jsonl", [line])
        self._write("stack.json", stack.facts())
        # A life that no sample has seen would be unknown in the access log.
        sampler.sample()

    def _check_members(self, stack: LoadStack) -> None:
        """Name a process that ended by itself, once."""
        for member in stack.members:
            if not member.process.is_running() and not member.is_away:
                member.is_away = True
                self._trouble.append(str(member.process.failure("ended by itself")))

    def _await_groups(self, stack: LoadStack, bounds: Sequence[PartitionEnds], consumers: Sequence[LoadClient]) -> None:
        """Until every group has committed every end, or nothing moves any more."""
        for entry in self._scenario.consumers:
            wanted = {(one.topic, one.partition): one.end for one in bounds if one.topic in self._topics_of(entry.topics) and one.end}
            moved_s, before = self._clock.monotonic_s(), -1
            while True:
                committed = self._answered(partial(self._committed, stack, entry.group))
                if all(committed.get(place) == end for place, end in wanted.items()):
                    break
                moved = sum(one.report.done for one in consumers if one.report is not None) + sum(committed.values())
                if moved != before:
                    before, moved_s = moved, self._clock.monotonic_s()
                elif self._clock.monotonic_s() - moved_s > STILL_S / 4:
                    break
                time.sleep(_LOOK_S)

    def _judged(
        self,
        stack: LoadStack,
        sampler: LoadSampler,
        bounds: Sequence[PartitionEnds],
        stored: Sequence[StoredRun],
        committed: Mapping[str, Mapping[LoadPartition, int]],
    ) -> LoadVerdict:
        """Compare until meters and log agree, or for a while: what is asked for meanwhile may be in one of the two."""
        sent, acked, doubtful = _intents(self._folder / "intents")
        give_up_s = self._clock.monotonic_s() + AGREED_WITHIN_S
        while True:
            time.sleep(METRICS_AGE_MAX_S)
            alive, silent = sampler.sample()
            lines = None if stack.logged is None else stack.logged()
            evidence = Evidence(
                sent=sent,
                acked=acked,
                doubtful=doubtful,
                stored=stored,
                bounds=bounds,
                idempotent=frozenset(self._idempotent),
                groups={entry.group: _sessions(self._folder / "consumed", entry.group) for entry in self._scenario.consumers},
                group_topics={entry.group: frozenset(self._topics_of(entry.topics)) for entry in self._scenario.consumers},
                committed=committed,
                counts=sampler.counts(alive),
                logged=None if lines is None else logged_counts(lines, stack.key_prefix),
                trouble=[*self._trouble, *(f"{name} runs, and does not answer" for name in silent)],
            )
            verdict = reconcile(evidence)
            if verdict.is_good or self._clock.monotonic_s() > give_up_s:
                return verdict

    def _committed(self, stack: LoadStack, group: str) -> dict[LoadPartition, int]:
        admin = AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0})
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
            _write_lines(self._folder / "client.jsonl", [report])

    def _producer_tasks(self, stack: LoadStack) -> Iterator[ProducerTask]:
        pending = self._scenario.events
        number = 0
        for entry in self._scenario.producers:
            for place in range(entry.count):
                records = entry.records // entry.count + (place < entry.records % entry.count)
                self._sizes[number] = entry.size
                if entry.idempotent:
                    self._idempotent.add(number)
                yield ProducerTask(
                    name=f"producer-{number}",
                    number=number,
                    run=self._token,
                    bootstrap=stack.bootstrap,
                    http=stack.http_addresses,
                    topics=self._topics_of(entry.topics),
                    records=records,
                    until=_until(records, pending),
                    producers=sum(one.count for one in self._scenario.producers),
                    rate=None if entry.rate is None else entry.rate / entry.count,
                    phases=[(phase.seconds, phase.rate_factor) for phase in self._scenario.phases],
                    size=entry.size,
                    keys=entry.keys,
                    codec=entry.codec,
                    idempotent=entry.idempotent,
                    linger_ms=entry.linger_ms,
                    uses_http=entry.client == HTTP,
                    file=str(self._folder / "intents" / f"producer-{number}.jsonl"),
                )
                number += 1

    def _consumer_tasks(self, stack: LoadStack) -> Iterator[ConsumerTask]:
        sizes = [entry.size for entry in self._scenario.producers for _ in range(entry.count)]
        for entry in self._scenario.consumers:
            for place in range(entry.count):
                yield ConsumerTask(
                    name=f"group-{entry.group}-{place}",
                    group=entry.group,
                    run=self._token,
                    bootstrap=stack.bootstrap,
                    topics=list(self._topics_of(entry.topics)),
                    commits_each=entry.commit == "each",
                    sizes=dict(enumerate(sizes)),
                    file=str(self._folder / "consumed" / entry.group / f"{place}.jsonl"),
                )

    def _topics_of(self, named: Sequence[str]) -> dict[str, int]:
        return self._scenario.topics_of(named)

    def _collector(self) -> RunCollector:
        makers = {producer: ValueMaker(run=self._token, producer=producer, size=size) for producer, size in self._sizes.items()}
        return RunCollector(run=self._token, makers=makers)

    def _prepare(self) -> None:
        for name in ("logs", "intents", "consumed"):
            (self._folder / name).mkdir(parents=True)
        for name in ("client.jsonl", "events.jsonl", "remaps.jsonl"):
            (self._folder / name).touch()
        (self._folder / "scenario.yaml").write_text(written_out(self._scenario), encoding="utf-8")
        libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
        versions = {"forebay": forebay_version(), "python": platform.python_version(), "librdkafka": librdkafka_version()[0], **libraries}
        self._write("versions.json", versions)
        machine = {"system": platform.platform(), "processors": os.cpu_count(), "command": "forebay bench load", "run": self._token}
        self._write("environment.json", {**machine, "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}})
        self._write("routing.json", {"mode": self._scenario.routing.mode})

    def _write(self, name: str, facts: object) -> None:
        (self._folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")


def _until(records: int, pending: Sequence[LoadEvent]) -> int:
    """What a producer may send before the next event that counts acknowledgements has happened."""
    percents = [event.at.acked_percent for event in pending if event.at.acked_percent is not None]
    return records if not percents else min(records, -(-records * (min(percents) + SENT_AHEAD_PERCENT) // 100))


def _intents(folder: Path) -> tuple[list[SentRange], list[AckedRange], list[DoubtfulRange]]:
    """What producers meant and heard. Ranges that follow each other are joined while they are read."""
    sent: dict[tuple[int, str, int], SentRange] = {}
    earlier: list[SentRange] = []
    acked, doubtful = [], []
    for word, *rest in _lines(folder.glob("*.jsonl")):
        if word == "sent":
            one = SentRange(*rest)
            known = sent.get(one[:3])
            if known is not None and known.end == one.first:
                one = known._replace(end=one.end)
            elif known is not None:
                earlier.append(known)
            sent[one[:3]] = one
        elif word == "acked":
            acked.append(AckedRange(*rest))
        else:
            doubtful.append(DoubtfulRange(*rest))
    return [*earlier, *sent.values()], acked, doubtful


def _sessions(folder: Path, group: str) -> list[SessionEvent]:
    found: list[SessionEvent] = []
    for word, at, member, *rest in _lines((folder / group).glob("*.jsonl")):
        if word == "read":
            found.append(SessionRead(at, member, StoredRun(*rest)))
        else:
            found.append(SessionBegan(at, member, *rest) if word == "began" else SessionCommitted(at, member, *rest))
    return found


def _lines(files: Iterator[Path]) -> Iterator[list[Any]]:
    """The whole lines. A process that was killed may have left half a line."""
    for file in sorted(files):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)


def _write_lines(file: Path, lines: Sequence[object]) -> None:
    with file.open("ab") as out:
        out.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
