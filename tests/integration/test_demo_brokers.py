"""`forebay demo --brokers`: one broker is killed on the way, and every record comes back."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from services.oxia import OxiaServer
from services.versitygw import S3Server
from tests.integration.command_line import lines_until

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
COMMAND = [sys.executable, "-m", "forebay", "demo", "--records", "5000"]
VERDICT = "5000 of 5000 records read back, order and checksums match"
KILLED = re.compile(
    r"killed    the broker on (\S+), which the producer was sending to, with kill -9 after [\d.]+ s: "
    r"([\d,]+) records were acknowledged by then, ([\d,]+) on their way"
)


def demo(folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> list[str]:
    ended = subprocess.run(
        [*COMMAND, "--exit", *arguments],
        check=False,
        cwd=folder,
        env=ENVIRONMENT | dict(environ or {}),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def killed(lines: list[str]) -> tuple[str, int, int]:
    """The broker, what it had acknowledged, and what was on its way."""
    (found,) = [match for line in lines if (match := KILLED.fullmatch(line))]
    return found[1], int(found[2].replace(",", "")), int(found[3].replace(",", ""))


def after(lines: list[str], begin: str) -> str:
    return next(line for line in lines if line.startswith(begin)).rpartition("through ")[2]


def test_with_no_settings_the_brokers_share_the_data_folder_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    lines = demo(tmp_path, "--brokers", "3")

    victim, acked, open_count = killed(lines)
    producers, reader = after(lines, "produced").split(", then "), after(lines, "consumed")
    assert VERDICT in lines
    assert f"the broker on {victim} was killed: nothing is lost, nothing is there twice, everything is in its order" in lines
    assert 2_500 <= acked < acked + open_count <= 5_000
    assert victim in producers
    assert len(producers) > 1
    assert victim != reader
    assert len(list((tmp_path / "forebay-data").glob("broker-*.log"))) == 3
    assert any(re.match(r"compacted [1-9]\d* objects into 6 segments, ", line) for line in lines)


@pytest.mark.slow
def test_on_stores_of_the_settings_the_topic_has_a_name_of_its_own_and_is_deleted(
    tmp_path: Path, oxia_server: OxiaServer, s3_server: S3Server
) -> None:
    environ = {"FOREBAY_METADATA__URL": oxia_server.url, "FOREBAY_STORAGE__URL": s3_server.url(), **s3_server.environ}

    first, second = demo(tmp_path, "--brokers", "2", environ=environ), demo(tmp_path, "--brokers", "2", environ=environ)

    names = [line.split()[2] for lines in (first, second) for line in lines if line.endswith(" was deleted")]
    assert VERDICT in first
    assert VERDICT in second
    assert len(set(names)) == 2
    assert all(re.fullmatch("forebay-demo-flights-[0-9a-z]{26}", name) for name in names)
    assert not (tmp_path / "forebay-data" / "meta.db").exists()


def test_it_serves_on_through_those_that_are_left_and_deletes_its_topic_when_it_is_stopped(tmp_path: Path) -> None:
    environ = {"FOREBAY_METADATA__URL": f"sqlite:///{tmp_path}/meta.db", "FOREBAY_STORAGE__URL": f"file://{tmp_path}/objects"}
    with subprocess.Popen(
        [*COMMAND, "--brokers", "2"], cwd=tmp_path, env=ENVIRONMENT | environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = lines_until("Ctrl-C stops", process.stdout)
        bootstrap = next(line for line in lines if line.startswith("try:")).split()[3]
        topics = set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics)

        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().splitlines()

    (topic,) = topics
    assert bootstrap != killed(lines)[0]
    assert rest == [f"the topic {topic} was deleted", "stopped"]
    assert process.returncode == 0


def test_an_impatient_second_interrupt_leaves_no_topic_behind(tmp_path: Path) -> None:
    environ = {"FOREBAY_METADATA__URL": f"sqlite:///{tmp_path}/meta.db", "FOREBAY_STORAGE__URL": f"file://{tmp_path}/objects"}
    with subprocess.Popen(
        [*COMMAND, "--brokers", "2"], cwd=tmp_path, env=ENVIRONMENT | environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines_until("Ctrl-C stops", process.stdout)

        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # and again, and again, wherever it is by now
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        rest = process.stdout.read().splitlines()

    assert re.fullmatch(r"the topic forebay-demo-flights-[0-9a-z]{26} was deleted", rest[0])
    assert rest[1:] == ["stopped"]
    assert process.returncode == 0


def test_memory_is_refused_for_several_brokers(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "--brokers", "3", "--in-memory"], check=False, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
    )

    assert ended.returncode == 2
    assert "make services && . .services/env" in ended.stdout
