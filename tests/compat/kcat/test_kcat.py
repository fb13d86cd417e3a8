"""kcat as Debian ships it (librdkafka 2.0.2 in Debian 12): list, produce, consume, every codec."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.serving import Served, serving

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def kcat() -> str:
    """Its path; installed as a Debian package if that may be done. A machine that is no Debian, or not ours to change, goes without."""
    found = shutil.which("kcat")
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        install = "apt-get install -y -q kcat || (apt-get update -q && apt-get install -y -q kcat)"
        subprocess.run(install, shell=True, check=True, capture_output=True, timeout=300)
        found = shutil.which("kcat")
    if found is None:
        assert not os.environ.get("CI"), "CI must have kcat"
        pytest.skip("kcat is not installed, and this is no Debian that may be changed")
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("kcat")) as broker:
        yield broker


def run(kcat: str, served: Served, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [kcat, "-b", served.bootstrap, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lists_the_broker_and_its_topics(kcat: str, served: Served) -> None:
    run(kcat, served, "-P", "-t", "listed", stdin="x\n")

    listing = run(kcat, served, "-L")
    assert f"at {served.bootstrap} (controller)" in listing
    assert 'topic "listed" with 1 partitions' in listing


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_it_produces_it_consumes_with_keys_and_headers(kcat: str, served: Served, codec: str) -> None:
    lines = [f"k{n}:value {n}" for n in range(500)]
    run(kcat, served, "-P", "-t", codec, "-z", codec, "-K:", "-H", "origin=test", stdin="\n".join(lines) + "\n")

    consumed = run(kcat, served, "-C", "-t", codec, "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert consumed.splitlines() == [f"{n} {line} origin=test" for n, line in enumerate(lines)]


def test_an_idempotent_producer_and_a_read_from_an_offset(kcat: str, served: Served) -> None:
    run(kcat, served, "-P", "-t", "idempotent", "-X", "enable.idempotence=true", stdin="".join(f"{n}\n" for n in range(100)))

    assert run(kcat, served, "-C", "-t", "idempotent", "-o", "90", "-e", "-q").split() == [str(n) for n in range(90, 100)]
    assert run(kcat, served, "-C", "-t", "idempotent", "-o", "-3", "-e", "-q").split() == ["97", "98", "99"]


def test_offsets_by_time(kcat: str, served: Served) -> None:
    run(kcat, served, "-P", "-t", "timed", stdin="now\n")

    assert run(kcat, served, "-Q", "-t", "timed:0:0").strip() == "timed [0] offset 0"
    assert run(kcat, served, "-Q", "-t", "timed:0:-1").strip() == "timed [0] offset 1"


def test_an_unknown_topic_without_creation_is_an_error(kcat: str, tmp_path: Path) -> None:
    with serving(tmp_path, settings={"kafka.auto_create_topics": "false"}) as strict:
        done = subprocess.run(
            [kcat, "-b", strict.bootstrap, "-C", "-t", "nowhere", "-e"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode != 0
        assert "Unknown topic or partition" in done.stderr
