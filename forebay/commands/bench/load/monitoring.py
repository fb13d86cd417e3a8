"""Prometheus and Grafana beside a load, where they are in the PATH; and the files that they, or others, take."""

import contextlib
import http.client
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forebay.commands.bench.load.facts import StackFacts
from forebay.commands.bench.load.stack import high_port
from forebay.commands.generate.dashboards import as_grafana, dashboards
from forebay.commands.generate.rules import alerts, alerts_yaml, recordings, recordings_yaml, scrape_yaml
from forebay.processes.child import HOST, ChildProcess, tethered
from process.settings.errors import StartError
from runtime.clock import Clock
from runtime.telemetry import Metric

INSTALL_PROMETHEUS: Final = "sudo apt-get install --no-install-recommends prometheus"
SCRAPE_EVERY: Final = "5s"
_READY_WITHIN_S: Final = 60.0
_ANSWER_WITHIN_S: Final = 5.0
_PACKAGED_HOME: Final = Path("/usr/share/grafana")
_DASHBOARDS: Final = "dashboards"


@dataclass(frozen=True, slots=True)
class MonitoringPlace:
    """URLs; None where the program is not in the PATH, or did not start."""

    folder: Path
    prometheus: str | None = None
    grafana: str | None = None


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
