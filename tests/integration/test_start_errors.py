"""`forebay serve` on services that are not there, not what they are said to be, or not for us: one line that says so, and an exit code."""

import json
import os
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from services.oxia import OxiaServer, running_oxia
from services.ports import free_port
from services.versitygw import S3Server
from storage.metadata.keys import CLUSTER
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import ABSENT, Put
from tests.kit import forked

ENDS_WITHIN_S = 60.0
EXIT_USAGE, EXIT_UNREACHABLE = 2, 3


@dataclass(frozen=True)
class Stores:
    metadata_url: str
    storage_url: str
    environ: Mapping[str, str] = field(default_factory=dict)


def start(stores: Stores, *, environ: Mapping[str, str]) -> tuple[int, list[str]]:
    """The exit code, and what was said of why it cannot serve; the log is lines of JSON and nothing else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_", "AWS_"))}
    given = {
        "metadata.url": stores.metadata_url,
        "storage.url": stores.storage_url,
        "kafka.listeners": "PLAINTEXT://127.0.0.1:0",
        "http.listen": "127.0.0.1:0",
    }
    with tempfile.TemporaryDirectory(prefix="forebay-") as folder:
        ended = forked.run(
            ["serve", "-c", os.devnull, *(f"--set={key}={value}" for key, value in given.items())],
            environ=kept | dict(environ) | dict(stores.environ),
            cwd=Path(folder),
            timeout_s=ENDS_WITHIN_S,
        )
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    return ended.returncode, [event["message"] for event in events if event["event"] == "cannot_serve"]


@pytest.fixture
def right(oxia_server: OxiaServer, s3_server: S3Server) -> Stores:
    return Stores(oxia_server.url, s3_server.url("start-errors"), s3_server.environ)


def test_oxia_that_is_not_there_is_named(right: Stores) -> None:
    port = free_port()

    code, said = start(Stores(f"oxia://127.0.0.1:{port}/default", right.storage_url), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert f"127.0.0.1:{port}" in said[0]
    assert "refused" in said[0]


def test_another_namespace_of_oxia_is_named(right: Stores) -> None:
    code, said = start(Stores(right.metadata_url.replace("/default", "/other"), right.storage_url), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert "other" in said[0]
    assert "namespace" in said[0]


def test_a_token_file_that_is_not_there_is_named(right: Stores) -> None:
    code, said = start(Stores(f"{right.metadata_url}?tls=false&token_file=/nowhere/token", right.storage_url), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert "token_file /nowhere/token cannot be read (No such file or directory): correct metadata.url" in said[0]


def test_oxia_without_tls_is_named_to_who_wants_it(right: Stores) -> None:
    code, said = start(Stores(f"{right.metadata_url}?tls=true", right.storage_url), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert "what listens there does not speak TLS: remove tls=true from metadata.url" in said[0]


def test_a_server_that_is_not_oxia_is_named(right: Stores, s3_server: S3Server) -> None:
    code, said = start(Stores(f"oxia://127.0.0.1:{s3_server.port}/default", right.storage_url), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert f"127.0.0.1:{s3_server.port}" in said[0]


@pytest.mark.parametrize("client", ["obstore", "aioboto3"])
@pytest.mark.parametrize(
    ("change", "environ", "named"),
    [
        pytest.param({"/forebay/": "/absent-bucket/"}, {}, "absent-bucket", id="no such bucket"),
        pytest.param({}, {"AWS_ACCESS_KEY_ID": "nobody"}, "nobody", id="unknown key"),
        pytest.param({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "forebay", id="wrong secret"),
        pytest.param({"region=us-east-1": "region=eu-west-1"}, {}, "us-east-1", id="wrong region"),
    ],
)
def test_a_bucket_that_is_not_ours_is_told_in_one_line(
    right: Stores, change: Mapping[str, str], environ: Mapping[str, str], named: str, client: str
) -> None:
    url = right.storage_url
    for old, new in change.items():
        assert old in url
        url = url.replace(old, new)

    code, said = start(Stores(right.metadata_url, url, {"FOREBAY_STORAGE__S3_CLIENT": client, **environ}), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert named in said[0]
    assert "ucket" in said[0]


def test_an_endpoint_where_nobody_listens_is_named(right: Stores, s3_server: S3Server) -> None:
    port = free_port()

    code, said = start(Stores(right.metadata_url, right.storage_url.replace(str(s3_server.port), str(port))), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert f"127.0.0.1:{port}" in said[0]


def test_an_endpoint_that_is_not_s3_is_named(right: Stores, s3_server: S3Server, oxia_server: OxiaServer) -> None:
    url = right.storage_url.replace(str(s3_server.port), str(oxia_server.port))

    code, said = start(Stores(right.metadata_url, url), environ=right.environ)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert f"127.0.0.1:{oxia_server.port}" in said[0]


def test_credentials_that_are_nowhere_are_told(right: Stores) -> None:
    home = {"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}

    code, said = start(Stores(right.metadata_url, right.storage_url), environ=home)

    assert code == EXIT_UNREACHABLE
    assert len(said) == 1
    assert "credentials" in said[0]


async def test_a_cluster_of_a_newer_format_is_left_alone(tmp_path: Path, right: Stores) -> None:
    with running_oxia(tmp_path) as oxia:
        async with Nursery() as nursery:
            metadata = await OxiaMetadataStore.open(parse_oxia_url(oxia.url), clock=SystemClock(), chance=random.Random(), nursery=nursery)
            await metadata.write([Put(CLUSTER, b'{"fmt":99,"cluster_id":"newer","created_at_ms":0}', ABSENT)])
            await metadata.close()
        code, said = start(Stores(oxia.url, right.storage_url), environ=right.environ)

    assert code == EXIT_USAGE
    assert len(said) == 1
    assert "written by format 99" in said[0]
