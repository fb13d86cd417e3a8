import socket
import sys
from pathlib import Path

import pytest

from forebay.commands.demo.cluster import BrokerProcess, DemoPlace, free_port, own_stores
from process.settings.errors import StartError
from process.settings.loading import load
from runtime.clock import SystemClock


def place(folder: Path, *, data: Path | None = None) -> DemoPlace:
    return DemoPlace(kafka_port=9092, http_port=1, stores=own_stores(data), log=folder / "logs" / "broker.log")


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert free_port(port) > port
    assert free_port(port) == port


def test_no_free_port_is_an_error() -> None:
    with pytest.raises(StartError, match=r"No free port from 65536 on\. Choose another first one with --port\."):
        free_port(65_536)


@pytest.mark.parametrize("data", [None, Path("forebay-data"), Path("/var/forebay")])
def test_the_broker_is_given_settings_it_accepts(tmp_path: Path, data: Path | None) -> None:
    settings = load(environ={}, assignments=place(tmp_path, data=data).assignments()).settings

    assert settings.kafka.listeners[0].port == 9092
    assert settings.storage.url == {None: "memory://", Path("forebay-data"): "file://./forebay-data/objects"}.get(
        data, "file:///var/forebay/objects"
    )


def test_a_broker_that_ends_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = tmp_path / "python"
    mute.write_text(f'#!{sys.executable}\nimport sys\nprint("Port 9092 on 127.0.0.1 is in use.")\nsys.exit(1)\n')
    mute.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(mute))

    with BrokerProcess(place(tmp_path), clock=SystemClock()) as broker, pytest.raises(StartError) as failed:
        broker.wait_ready()

    assert str(failed.value).startswith("The broker on 127.0.0.1:9092 ended before it was ready. The end of its log")
    assert str(failed.value).endswith("\n  Port 9092 on 127.0.0.1 is in use.")
    assert failed.value.exit_code == 1


def test_a_broker_that_never_gets_ready_is_given_up_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = tmp_path / "python"
    idle.write_text(f"#!{sys.executable}\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    signal.pause()\n")
    idle.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(idle))

    with BrokerProcess(place(tmp_path), clock=SystemClock(), stop_within_s=0.2) as broker:
        with pytest.raises(StartError, match="was not ready within"):
            broker.wait_ready(within_s=0.2)
        running = broker.is_running()

    assert running
    assert not broker.is_running()


def test_a_broker_that_says_why_it_cannot_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frank = tmp_path / "python"
    frank.write_text(f'#!{sys.executable}\nimport os\nos.write(0, b\'{{"refused": "The folder is on fire."}}\\n\')\n')
    frank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(frank))

    with BrokerProcess(place(tmp_path), clock=SystemClock()) as broker, pytest.raises(StartError) as failed:
        broker.wait_ready()

    assert str(failed.value) == "The broker on 127.0.0.1:9092 ended before it was ready. The folder is on fire."


def test_a_broker_that_is_killed_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = tmp_path / "python"
    idle.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    idle.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(idle))

    with BrokerProcess(place(tmp_path), clock=SystemClock()) as broker:
        before = broker.is_running()
        broker.kill9()
        after = broker.is_running()
        broker.terminate()

    assert (before, after) == (True, False)
