import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forebay", "demo", "--records", "5000", *arguments]


def demo(folder: Path, *arguments: str) -> list[str]:
    ended = subprocess.run(
        command("--exit", *arguments), check=False, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def test_every_flight_comes_back_also_the_second_time(tmp_path: Path) -> None:
    first, second = demo(tmp_path), demo(tmp_path)

    assert "5000 of 5000 records read back, order and checksums match" in first
    assert "5000 of 5000 records read back, order and checksums match" in second
    assert "the topic flights of an earlier run was deleted" in second
    assert (tmp_path / "forebay-data" / "broker.log").stat().st_size > 0


def test_in_memory_leaves_no_data_behind(tmp_path: Path) -> None:
    lines = demo(tmp_path, "--in-memory")

    assert "5000 of 5000 records read back, order and checksums match" in lines
    assert not (tmp_path / "forebay-data").exists()


def test_it_serves_on_until_it_is_stopped_and_takes_its_broker_along(tmp_path: Path) -> None:
    with subprocess.Popen(command(), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [line.rstrip() for line in iter(process.stdout.readline, "Ctrl-C stops\n")]
        host, port = next(line for line in lines if line.startswith("http ")).rpartition("//")[2].split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
        connection.close()

        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()

    assert status == 200
    assert rest == "stopped\n"
    assert process.returncode == 0
    assert '"event": "stopped"' in (tmp_path / "forebay-data" / "broker.log").read_text().splitlines()[-1]
