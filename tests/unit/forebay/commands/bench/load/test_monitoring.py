"""Prometheus and Grafana beside a load: their command lines, and the table of addresses."""

from pathlib import Path

from forebay.commands.bench.load.folder import LoadMember, StackFacts
from forebay.commands.bench.load.watching import MonitoringPlace, address_table, grafana_command, grafana_environ, prometheus_command

BROKER = LoadMember(kind="broker", number=1, kafka="127.0.0.1:9092", http="127.0.0.1:8070")
COMPACTOR = LoadMember(kind="compactor", number=1, kafka="", http="127.0.0.1:8170")
FACTS = StackFacts(bootstrap=BROKER.kafka, members=[BROKER, COMPACTOR])


def test_the_table_names_every_address_and_the_folder(tmp_path: Path) -> None:
    place = MonitoringPlace(tmp_path, prometheus="http://127.0.0.1:20000", grafana="http://127.0.0.1:20001")

    table = address_table(FACTS, place, tmp_path)

    assert [line.split()[-1] for line in table.splitlines()[1:]] == [
        "127.0.0.1:9092",
        "http://127.0.0.1:8070/",
        "http://127.0.0.1:8070/metrics",
        "http://127.0.0.1:8170/metrics",
        "http://127.0.0.1:20000",
        "http://127.0.0.1:20001",
        str(tmp_path),
    ]


def test_where_nothing_shows_dashboards_the_table_names_the_files_to_import(tmp_path: Path) -> None:
    table = address_table(FACTS, MonitoringPlace(tmp_path), tmp_path)

    assert f"{tmp_path}/prometheus.yml" in table
    assert f"import {tmp_path}/dashboards/*.json" in table


def test_prometheus_listens_on_this_machine_alone_and_keeps_its_data_in_the_folder(tmp_path: Path) -> None:
    command = prometheus_command("/usr/bin/prometheus", tmp_path, 20_000)

    assert command[0] == "/usr/bin/prometheus"
    assert "--web.listen-address=127.0.0.1:20000" in command
    assert f"--storage.tsdb.path={tmp_path}/prometheus" in command


def test_grafana_is_started_by_either_name_with_the_files_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "public").mkdir()

    assert grafana_command(f"{tmp_path}/bin/grafana") == [f"{tmp_path}/bin/grafana", "server", "--homepath", str(tmp_path)]
    assert grafana_command("/usr/sbin/grafana-server")[1:] == ["--homepath", "/usr/share/grafana"]
    environ = grafana_environ(tmp_path, 20_001)
    assert (environ["GF_SERVER_HTTP_ADDR"], environ["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", "20001")
    assert all(value.startswith(f"{tmp_path}/grafana") for name, value in environ.items() if name.startswith("GF_PATHS_"))
