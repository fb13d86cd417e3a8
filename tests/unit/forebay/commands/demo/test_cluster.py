import socket
import sys
from pathlib import Path

import pytest

from forebay.commands.demo.cluster import BrokerProcess, Brokers, free_port, own_stores, places
from process.settings.errors import StartError
from process.settings.sections import HTTP_PORT
from runtime.clock import SystemClock


def test_every_broker_gets_free_ports_and_a_log_and_busy_ports_are_told(tmp_path: Path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        found = places(own_stores(tmp_path), brokers=3, port=port, log_folder=tmp_path, say=said.append)

    assert len({place.kafka_port for place in found}) == len({place.http_port for place in found}) == 3
    assert port not in {place.kafka_port for place in found}
    assert [place.log.name for place in found] == ["broker-0.log", "broker-1.log", "broker-2.log"]
    assert said[0] == f"port {port} is in use, {found[0].kafka_port} is free"


def test_kafka_and_http_never_get_the_same_port(tmp_path: Path) -> None:
    said: list[str] = []
    first = free_port(HTTP_PORT)

    found = places(own_stores(tmp_path), brokers=3, port=first - 1, log_folder=tmp_path, say=said.append)

    assert len({port for place in found for port in (place.kafka_port, place.http_port)}) == 6


def test_one_broker_has_the_log_to_itself(tmp_path: Path) -> None:
    (place,) = places(own_stores(tmp_path), brokers=1, port=1024, log_folder=tmp_path, say=lambda line: None)

    assert place.log == tmp_path / "broker.log"


def test_what_is_wrong_with_all_brokers_is_said_by_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = tmp_path / "python"
    mute.write_text(f"#!{sys.executable}\nimport sys\nprint('The folder is on fire.')\nsys.exit(1)\n")
    mute.chmod(0o755)
    found = places(own_stores(tmp_path), brokers=2, port=1024, log_folder=tmp_path, say=lambda line: None)
    monkeypatch.setattr(sys, "executable", str(mute))

    with Brokers(found, clock=SystemClock()) as brokers, pytest.raises(StartError, match="The folder is on fire"):
        brokers.start()

    assert not found[1].log.exists()


def test_a_broker_that_has_ended_is_not_among_the_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = places(own_stores(tmp_path), brokers=2, port=1024, log_folder=tmp_path, say=lambda line: None)
    ends = tmp_path / "python"
    ends.write_text(f"#!{sys.executable}\nimport signal, sys\nif '{found[0].address}' not in str(sys.argv):\n    signal.pause()\n")
    ends.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ends))
    monkeypatch.setattr(BrokerProcess, "wait_ready", lambda self: None)

    with Brokers(found, clock=SystemClock()) as brokers:
        brokers.start()
        with pytest.raises(StartError, match="ended by itself"):
            brokers.wait_end()

        assert brokers.running() == [found[1]]
