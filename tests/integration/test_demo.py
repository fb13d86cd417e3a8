import http.client
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command_line import answered, forebay, lines_until
from tests.kit.serving import serving

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
    names = [re.fullmatch(r"produced .* to (forebay-demo-flights-[0-9a-z]{26}), 6 partitions", line) for line in (*first, *second)]
    earlier, later = (found[1] for found in names if found)
    assert f"the topic {earlier} of an earlier run was deleted" in second
    for lines in (first, second):
        compacted, again, cost, full = lines[-4:]
        found = re.fullmatch(r"compacted ([1-9]\d*) objects into 6 segments, 0\.\d MiB, in [\d.]+ s", compacted)
        assert found, compacted
        assert re.fullmatch(r"consumed  5,000 records in .* from the segments: they match, too", again)
        assert re.fullmatch(r"on S3 Standard a GiB written at this load, .* would cost \$\d+\.\d{4} of .* every 250ms makes .*", cost)
        assert full.endswith("pays less than $0.001 for the PUTs of a GiB (forebay cost estimate 50MiB)")
    with serving(tmp_path / "forebay-data") as served:
        assert [topic["name"] for topic in answered(served.bootstrap, "topic", "list")] == [later]
    assert (tmp_path / "forebay-data" / "broker.log").stat().st_size > 0


@pytest.mark.slow
def test_what_a_user_has_in_the_data_folder_is_there_after_it(tmp_path: Path) -> None:
    users = ("flights", "forebay-demo-flights", "orders")
    with serving(tmp_path / "forebay-data") as served:
        for name in users:
            answered(served.bootstrap, "topic", "create", name)
            answered(served.bootstrap, "topic", "produce", name, given=f"mine in {name}".encode())
        before = {name: answered(served.bootstrap, "topic", "describe", name) for name in users}

    demo(tmp_path)
    demo(tmp_path)

    with serving(tmp_path / "forebay-data") as served:
        assert {name: answered(served.bootstrap, "topic", "describe", name) for name in users} == before
        for name in users:
            assert forebay(served.bootstrap, "topic", "consume", name, "--exit", "-q") == (0, f"mine in {name}\n", "")


@pytest.mark.slow
def test_a_topic_that_somebody_made_under_the_name_of_the_demos_is_left_alone(tmp_path: Path) -> None:
    demo(tmp_path)
    with serving(tmp_path / "forebay-data") as served:
        (name,) = (topic["name"] for topic in answered(served.bootstrap, "topic", "list"))
        forebay(served.bootstrap, "topic", "delete", name, "--yes")
        answered(served.bootstrap, "topic", "create", name)
        answered(served.bootstrap, "topic", "produce", name, given=b"mine")

    lines = demo(tmp_path)

    assert f"the topic {name} is not the one an earlier run made: it is left alone" in lines
    assert "5000 of 5000 records read back, order and checksums match" in lines
    with serving(tmp_path / "forebay-data") as served:
        assert forebay(served.bootstrap, "topic", "consume", name, "--exit", "-q") == (0, "mine\n", "")


def test_in_memory_leaves_no_data_behind(tmp_path: Path) -> None:
    lines = demo(tmp_path, "--in-memory")

    assert "5000 of 5000 records read back, order and checksums match" in lines
    assert lines[-1] == "in memory nothing is compacted: a compactor is a process of its own"
    assert not (tmp_path / "forebay-data").exists()


def test_it_serves_on_until_it_is_stopped_and_takes_its_broker_along(tmp_path: Path) -> None:
    with subprocess.Popen(command(), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = lines_until("Ctrl-C stops", process.stdout)
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
