"""A cluster to watch: it runs under a scenario's load, with metrics and dashboards, until it is interrupted. Nothing is reconciled.

Prometheus and Grafana run beside it where they are in the PATH; the files that they take are written for others, too.
"""

import contextlib
import http.client
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forebay.commands.bench.load.folder import LoadTarget, StackFacts, live_brokers, new_folder, prepare_folder, run_token, write_lines
from forebay.commands.bench.load.running import LoadClient, TaskMaker, create_topics, let_go, resolved_scenario, tell_brokers
from forebay.commands.bench.load.scenario import EventSchedule, LoadEvent, Scenario
from forebay.commands.bench.load.stack import LoadStack, high_port
from forebay.commands.bench.load.tasks import ClientReport
from forebay.commands.generate.dashboards import as_grafana, dashboards
from forebay.commands.generate.rules import alerts, alerts_yaml, recordings, recordings_yaml, scrape_yaml
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.kafka_client.options import Terminal
from forebay.kafka_client.text import align
from forebay.processes.child import HOST, ChildProcess, tethered
from forebay.reference import shown_metrics
from process.settings.errors import StartError
from runtime.clock import Clock, SystemClock
from runtime.telemetry import Metric

INSTALL_PROMETHEUS: Final = "sudo apt-get install --no-install-recommends prometheus"
SCRAPE_EVERY: Final = "5s"
_READY_WITHIN_S: Final = 60.0
_ANSWER_WITHIN_S: Final = 5.0
_PACKAGED_HOME: Final = Path("/usr/share/grafana")
_DASHBOARDS: Final = "dashboards"
KEPT_CONFIGS: Final = {"retention.ms": "3600000"}
"""Topics that are written for as long as somebody watches keep an hour of records."""
UNENDING: Final = 2**40
"""Records of a producer: more than anybody waits for."""
_LOOK_S: Final = 0.25
_COLUMNS: Final = 1_000
"""Addresses are never cut."""


@dataclass(frozen=True, slots=True)
class MonitoringPlace:
    """URLs; None where the program is not in the PATH, or did not start."""

    folder: Path
    prometheus: str | None = None
    grafana: str | None = None


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


def write_monitoring(folder: Path, facts: StackFacts, table: Mapping[str, Metric]) -> None:
    """A configuration of Prometheus with alerts and rules, and dashboards, in `folder`, which is made."""
    (folder / _DASHBOARDS).mkdir(parents=True)
    for name, dashboard in dashboards(table).items():
        (folder / _DASHBOARDS / f"{name}.json").write_text(as_grafana(name, dashboard), encoding="utf-8")
    (folder / "alerts.yml").write_text(alerts_yaml(alerts(table)), encoding="utf-8")
    (folder / "recording.yml").write_text(recordings_yaml(recordings(table)), encoding="utf-8")
    addresses = {kind: [member.http for member in facts.members if member.kind == kind] for kind in ("broker", "compactor")}
    configuration = scrape_yaml(
        brokers=addresses["broker"], compactors=addresses["compactor"], interval=SCRAPE_EVERY, rule_files=["alerts.yml", "recording.yml"]
    )
    (folder / "prometheus.yml").write_text(configuration, encoding="utf-8")


@contextlib.contextmanager
def monitored(folder: Path, logs: Path, *, clock: Clock) -> Iterator[tuple[MonitoringPlace, list[str]]]:
    """Start what is in the PATH on the files of `write_monitoring`. The lines say why something does not run."""
    said: list[str] = []
    with contextlib.ExitStack() as closing:
        prometheus = grafana = None
        if (program := shutil.which("prometheus")) is None:
            said.append(f"Prometheus is not in the PATH: {INSTALL_PROMETHEUS}")
        else:
            port = high_port(())
            with _excused(said):
                prometheus = _started(prometheus_command(program, folder, port), "prometheus", logs, port, "/-/ready", closing, clock)
        if (program := shutil.which("grafana") or shutil.which("grafana-server")) is not None:
            port = high_port(())
            _provision(folder, prometheus)
            environ = grafana_environ(folder, port)
            with _excused(said):
                grafana = _started(grafana_command(program), "grafana", logs, port, "/api/health", closing, clock, environ)
        yield MonitoringPlace(folder, prometheus, grafana), said


def prometheus_command(program: str, folder: Path, port: int) -> list[str]:
    return [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]


def grafana_command(program: str) -> list[str]:
    """Its own files are two folders above the program, or where packages put them."""
    home = Path(program).resolve().parent.parent
    server = ["server"] if Path(program).name == "grafana" else []
    return [program, *server, "--homepath", str(home if (home / "public").is_dir() else _PACKAGED_HOME)]


def grafana_environ(folder: Path, port: int) -> dict[str, str]:
    """Settings of a Grafana that keeps its files below `folder`. All users of this machine may look and change."""
    own = folder / "grafana"
    return {
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(own),
        "GF_PATHS_LOGS": str(own / "logs"),
        "GF_PATHS_PLUGINS": str(own / "plugins"),
        "GF_PATHS_PROVISIONING": str(own / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Admin",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }


def _provision(folder: Path, prometheus: str | None) -> None:
    """A Prometheus to ask, if there is one, and the dashboards."""
    provisioning = folder / "grafana" / "provisioning"
    for name in ("datasources", _DASHBOARDS):
        (provisioning / name).mkdir(parents=True)
    own = {"name": "Forebay", "type": "prometheus", "access": "proxy", "url": prometheus, "isDefault": True}
    sources = {"apiVersion": 1, "datasources": [own] if prometheus else []}
    provider = {"name": "Forebay", "type": "file", "options": {"path": str(folder / _DASHBOARDS)}}
    # JSON is YAML.
    (provisioning / "datasources" / "forebay.yaml").write_bytes(msgspec.json.encode(sources))
    (provisioning / _DASHBOARDS / "forebay.yaml").write_bytes(msgspec.json.encode({"apiVersion": 1, "providers": [provider]}))


def _started(
    command: list[str],
    name: str,
    logs: Path,
    port: int,
    ready_path: str,
    closing: contextlib.ExitStack,
    clock: Clock,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Its URL, when it answers. Raise `StartError`."""
    child = ChildProcess(tethered(command), name=name, log=logs / f"{name}.log", clock=clock, environ=environ)
    closing.callback(child.stop)
    child.start()
    child.wait_until(lambda: _answers(port, ready_path), "ready", within_s=_READY_WITHIN_S)
    return f"http://{HOST}:{port}"


@contextlib.contextmanager
def _excused(said: list[str]) -> Iterator[None]:
    """A cluster is watched without it, too."""
    try:
        yield
    except StartError as error:
        said.append(str(error))


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_WITHIN_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        # It does not listen yet.
        return False
    finally:
        connection.close()
