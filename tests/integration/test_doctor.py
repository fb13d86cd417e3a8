"""`forebay doctor` on embedded stores: what `serve` refuses it explains, what is well it says, and nothing is left behind."""

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from services.ports import free_port
from storage.metadata.key_order import encode
from storage.metadata.keys import CLUSTER
from tests.integration.doctoring import Report, doctor, doctor_apart, names_below, on_this_machine, refusal
from tests.integration.transcripts import Shell, commands, part
from tests.kit.serving import ROOT, Served, serving

NOBODY = 65_534

OF_STORES = {
    "metadata store",
    "metadata: cluster",
    "metadata: brokers",
    "metadata: conditions",
    "metadata: sessions",
    "metadata: latency",
    "object store",
    "objects: put",
    "objects: second put",
    "objects: range read",
    "objects: list",
    "objects: latency",
    "objects: delete",
    "both stores",
    "age of the metadata",
    "early batches",
    "clock of the object store",
}


def test_a_fresh_folder_is_well_and_stays_as_it_is(tmp_path: Path) -> None:
    report = doctor(
        {}, cwd=tmp_path, environ={"FOREBAY_KAFKA__LISTENERS": "PLAINTEXT://127.0.0.1:0", "FOREBAY_HTTP__LISTEN": "127.0.0.1:0"}
    )

    assert (report.exit_code, report.failed) == (0, {})
    assert report.of("ok").keys() >= OF_STORES
    assert "would be made" in report.of("ok")["metadata store"]
    assert "would be made" in report.of("ok")["object store"]
    assert "there is none yet" in report.of("ok")["metadata: cluster"]
    assert names_below(tmp_path) == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "data", settings={"broker.id": "7"}) as broker:
        yield broker


def settings_of(served: Served, folder: Path) -> dict[str, str]:
    ports = {"kafka.listeners": f"PLAINTEXT://{served.bootstrap}", "http.listen": f"127.0.0.1:{served.http_port}", "broker.id": "7"}
    return {**on_this_machine(folder), **ports}


def test_beside_a_running_broker_all_is_well_and_the_broker_is_named(served: Served, tmp_path: Path) -> None:
    before = names_below(tmp_path)

    report = doctor(settings_of(served, tmp_path / "data"), cwd=tmp_path)

    well = report.of("ok")
    assert (report.exit_code, report.failed, report.of("warning"), report.of("skipped")) == (0, {}, {}, {})
    assert well.keys() >= OF_STORES
    cluster_id = well["metadata: cluster"].split(",")[0]
    assert f"1 registered: 7 at PLAINTEXT://{served.bootstrap}" in well["metadata: brokers"]
    assert f"broker 7 of cluster {cluster_id} (pid {served.pid}" in well["port: PLAINTEXT"]
    assert f"broker 7 of cluster {cluster_id} (pid {served.pid}" in well["port: HTTP"]
    assert f"broker 7 of cluster {cluster_id}" in well["advertised: PLAINTEXT"]
    assert "held by the broker that runs on these settings" in well["broker.id"]
    assert names_below(tmp_path) == before
    assert not [line for line in served.events() if line["level"] in {"warning", "error"}]


def test_the_port_of_another_cluster_is_not_taken_for_ones_own(served: Served, tmp_path: Path) -> None:
    settings = settings_of(served, tmp_path / "another")

    report = doctor(settings, cwd=tmp_path)

    assert report.exit_code == 1
    assert "not of the cluster of metadata.url" in report.failed["port: PLAINTEXT"]
    assert "not of the cluster of metadata.url" in report.failed["port: HTTP"]
    assert "another cluster" in report.failed["advertised: PLAINTEXT"]


def test_clients_are_not_to_be_led_to_where_nobody_listens(served: Served, tmp_path: Path) -> None:
    settings = settings_of(served, tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    misled = {
        "a name that nobody knows": "PLAINTEXT://broker.invalid:9092",
        "a port that nobody has": f"PLAINTEXT://127.0.0.1:{port}",
    }

    reports = {what: doctor(settings | {"kafka.advertised_listeners": given}, cwd=tmp_path) for what, given in misled.items()}
    found = {what: report.of("warning").get("advertised: PLAINTEXT") for what, report in reports.items()}

    assert "does not resolve" in str(found["a name that nobody knows"])
    assert "connection refused" in str(found["a port that nobody has"])


def test_a_broker_that_advertises_what_leads_nowhere_is_found_at_its_port(tmp_path: Path) -> None:
    nowhere = {"kafka.advertised_listeners": "PLAINTEXT://broker.invalid:9092"}
    with serving(tmp_path, settings={**nowhere, "broker.id": "7"}) as broker:
        report = doctor({**settings_of(broker, tmp_path), **nowhere}, cwd=tmp_path)

    assert report.failed == {}
    assert "a broker on these settings runs" in report.of("ok")["port: PLAINTEXT"]
    assert report.of("warning").keys() == {"advertised: PLAINTEXT"}


def test_memory_is_not_looked_into(tmp_path: Path) -> None:
    settings = {**on_this_machine(tmp_path), "storage.url": "memory://", "metadata.url": "memory://"}

    report = doctor(settings, cwd=tmp_path)

    assert report.exit_code == 0
    assert report.of("skipped").keys() >= {"metadata store", "object store"}


def test_a_listener_for_others_is_a_warning(tmp_path: Path) -> None:
    settings = {
        **on_this_machine(tmp_path),
        "kafka.listeners": "PLAINTEXT://0.0.0.0:0",
        "http.listen": "0.0.0.0:0",
        "http.insecure": "true",
    }

    report = doctor(settings, cwd=tmp_path)

    warned = [detail for check, verdict, detail in report.findings if (check, verdict) == ("authentication", "warning")]
    assert report.exit_code == 0
    assert "PLAINTEXT://0.0.0.0:0 takes connections from beyond this machine" in warned[0]
    assert "http.listen 0.0.0.0:0" in warned[1]


def test_few_open_files_are_a_warning(tmp_path: Path) -> None:
    report = doctor_apart(on_this_machine(tmp_path), cwd=tmp_path, open_files_max=256)

    assert report.exit_code == 0
    assert "no more than 120 connections are open at a time" in report.of("warning")["open files"]


def test_a_report_for_people_has_one_line_per_verdict(tmp_path: Path) -> None:
    given = [f"--set={key}={value}" for key, value in on_this_machine(tmp_path).items()]

    ended = subprocess.run(
        [sys.executable, "-m", "forebay", "doctor", "-c", os.devnull, *given], capture_output=True, text=True, check=False, timeout=90
    )

    lines = ended.stdout.splitlines()
    assert ended.returncode == 0
    assert {line.split()[0] for line in lines} <= {"ok", "warning", "skipped"}
    assert ended.stderr.strip() == f"{len(lines) - 1} ok, 1 skipped."


MASKS = (
    (re.compile(r"\b\d+ of \d+ are given, in .*(?=forebay\.yaml$)", re.MULTILINE), "3 of <n> are given, in "),
    (re.compile(r"Python .*"), "Python <version> on <system>"),
    (re.compile(r"(?<=may open )\d+|(?<=may use )\d+|\d+(?= MiB of )|\d+(?= MiB free)|(?<=median )[\d.]+|(?<=slowest )[\d.]+"), "<n>"),
    (re.compile(r"(?<=cluster )[\w-]{22}\b|(?<= )[\w-]{22}(?=, format level)"), "<id>"),
    (re.compile(r"(?<=\.probe/doctor-)\w+(?=-0)"), "<ulid>"),
    (re.compile(r"(?<=pid )\d+"), "<pid>"),
)


def test_the_transcript_of_the_page_is_what_doctor_writes(tmp_path: Path) -> None:
    kafka_port, http_port = free_port(), free_port()
    text = part((ROOT / "docs" / "guides" / "doctor.md").read_text(), "Before you call for help: forebay doctor")
    (_, settings), *_ = commands(text)
    with Shell(tmp_path, {"/srv": str(tmp_path), ":9092": f":{kafka_port}", ":8070": f":{http_port}"}, masks=MASKS) as shell:
        (tmp_path / "forebay.yaml").write_text(settings.replace(":9092", f":{kafka_port}").replace(":8070", f":{http_port}"))
        shell.replay(text)


# What `serve` refuses


@contextlib.contextmanager
def nothing(_: Path) -> Iterator[None]:
    yield


@contextlib.contextmanager
def no_database(folder: Path) -> Iterator[None]:
    (folder / "meta.db").write_text("dear diary, " * 100)
    yield


@contextlib.contextmanager
def another_programs_database(folder: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(folder / "meta.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
    yield


@contextlib.contextmanager
def newer_file(folder: Path) -> Iterator[None]:
    with serving(folder):
        pass
    with contextlib.closing(sqlite3.connect(folder / "meta.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    yield


@contextlib.contextmanager
def newer_cluster(folder: Path) -> Iterator[None]:
    write_cluster(folder, b'{"fmt":99,"cluster_id":"newer","created_at_ms":0}')
    yield


@contextlib.contextmanager
def cluster_being_raised(folder: Path) -> Iterator[None]:
    write_cluster(folder, b'{"fmt":1,"cluster_id":"ITS OWN","created_at_ms":0,"level":1,"raising_to":99}')
    yield


def write_cluster(folder: Path, record: bytes) -> None:
    """In place of what a broker wrote there."""
    with serving(folder):
        pass
    own = json.loads((folder / "objects" / "forebay-cluster.json").read_bytes())["cluster_id"]
    record = record.replace(b"ITS OWN", own.encode())
    with contextlib.closing(sqlite3.connect(folder / "meta.db", isolation_level=None)) as connection:
        changed = connection.execute("UPDATE records SET value = ? WHERE k = ?", (record, encode(CLUSTER.path)))
        assert changed.rowcount == 1


@contextlib.contextmanager
def file_in_the_way(folder: Path) -> Iterator[None]:
    (folder / "objects").write_text("")
    yield


@contextlib.contextmanager
def objects_of_another(folder: Path) -> Iterator[None]:
    """Both clusters have begun, and their folders changed places."""
    another = folder.with_name("another")
    for one in (folder, another):
        with serving(one):
            pass
    shutil.rmtree(folder / "objects")
    (another / "objects").rename(folder / "objects")
    shutil.rmtree(another)
    yield


@contextlib.contextmanager
def broker_of_that_id(folder: Path) -> Iterator[None]:
    with serving(folder, settings={"broker.id": "3"}):
        yield


@contextlib.contextmanager
def taken_kafka_port(_: Path) -> Iterator[Mapping[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield {"kafka.listeners": f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"}


@contextlib.contextmanager
def taken_http_port(_: Path) -> Iterator[Mapping[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield {"http.listen": f"127.0.0.1:{taken.getsockname()[1]}"}


@pytest.mark.parametrize(
    ("situation", "change", "check"),
    [
        pytest.param(nothing, {"kafka.lisseners": "x"}, "settings", id="a name that is no setting"),
        pytest.param(nothing, {"storage.flush_bytes": "1", "http.listen": "x"}, "settings", id="several wrong values"),
        pytest.param(nothing, {"http.listen": "0.0.0.0:0"}, "settings", id="values that contradict each other"),
        pytest.param(nothing, {"storage.cache_bytes": "1024GiB"}, "memory", id="more memory than there is"),
        pytest.param(nothing, {"storage.url": "file:///proc/forebay/objects"}, "object store", id="a folder that cannot be made"),
        pytest.param(
            nothing, {"metadata.url": "sqlite:////proc/forebay/meta.db"}, "metadata store", id="a metadata file that cannot be made"
        ),
        pytest.param(file_in_the_way, {}, "object store", id="a file where the folder is to be"),
        pytest.param(no_database, {}, "metadata store", id="a metadata file that is none"),
        pytest.param(another_programs_database, {}, "metadata store", id="a database of another program"),
        pytest.param(newer_file, {}, "metadata store", id="a metadata file of a newer release"),
        pytest.param(newer_cluster, {}, "metadata: cluster", id="a cluster of a newer release"),
        pytest.param(cluster_being_raised, {}, "metadata: cluster", id="a cluster that is being raised"),
        pytest.param(nothing, {"log.audit": "/proc/forebay/audit.log"}, "audit log", id="an audit log that cannot be written"),
        pytest.param(objects_of_another, {}, "both stores", id="the object store of another cluster"),
        pytest.param(broker_of_that_id, {"broker.id": "3"}, "broker.id", id="an id that another broker has"),
        pytest.param(taken_kafka_port, {}, "port: PLAINTEXT", id="a Kafka port in use"),
        pytest.param(taken_http_port, {}, "port: HTTP", id="an HTTP port in use"),
        pytest.param(nothing, {"kafka.listeners": "PLAINTEXT://192.0.2.1:9092"}, "port: PLAINTEXT", id="another machine's address"),
        pytest.param(nothing, {"kafka.listeners": "PLAINTEXT://broker.invalid:9092"}, "port: PLAINTEXT", id="a host that does not resolve"),
    ],
)
def test_what_serve_refuses_doctor_explains(
    tmp_path: Path,
    situation: Callable[[Path], contextlib.AbstractContextManager[Mapping[str, str] | None]],
    change: Mapping[str, str],
    check: str,
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with situation(folder) as given:
        settings = {**on_this_machine(folder), **change, **(given or {})}
        before = names_below(tmp_path)
        report = doctor(settings, cwd=tmp_path)
        after = names_below(tmp_path)
        said = refusal(settings, cwd=tmp_path)

    assert report.exit_code == 1
    for line in said:
        assert _has(report, check, line), (line, report.failed)
    assert {failing.partition(":")[0] for failing in report.failed} <= {check.partition(":")[0], "advertised"}
    assert after == before


def test_a_limit_of_open_files_that_leaves_no_connection_is_explained(tmp_path: Path) -> None:
    settings = on_this_machine(tmp_path)

    report = doctor_apart(settings, cwd=tmp_path, open_files_max=60)
    (said,) = refusal(settings, cwd=tmp_path, open_files_max=60)

    assert report.exit_code == 1
    assert report.failed["open files"] == said


def test_a_folder_without_permission_is_explained_to_who_is_not_root(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(folder):
        pass
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    # Its modules lie where only root may read: all are loaded before.
    code = (
        "import os, sys; from forebay.commands.doctor.run import doctor; from forebay.kafka_client.options import Terminal; "
        f"os.geteuid() or os.seteuid({NOBODY}); sys.exit(doctor(None, sys.argv[1:], {{}}, Terminal()))"
    )
    given = [f"{key}={value}" for key, value in on_this_machine(folder).items()]

    ended = subprocess.run(
        [sys.executable, "-c", code, *given],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert ended.returncode == 1
    assert f"cannot write to {folder} (Permission denied)" in ended.stdout, ended.stderr


def _has(report: Report, check: str, line: str) -> bool:
    failed = [detail for its, verdict, detail in report.findings if (its, verdict) == (check, "failed")]
    return any(_but_for_the_port(line) in _but_for_the_port(detail) for detail in failed)


def _but_for_the_port(text: str) -> str:
    """Which port is free in place of one that is taken changes from moment to moment."""
    return re.sub(r"(?<=Choose another with --set )(\S+):\d+", r"\1", text)
