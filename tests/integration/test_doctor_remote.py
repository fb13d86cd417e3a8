"""`forebay doctor` on Oxia and S3: what `serve` refuses it explains, permission by permission, and what it wrote is gone."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from services.oxia import OxiaServer
from services.ports import free_port
from services.versitygw import S3Server
from storage.metadata.port import Key, children_of
from storage.opening import open_stores
from tests.integration.doctoring import doctor, on_this_machine, refusal
from tests.integration.test_doctor import OF_STORES
from tests.kit.serving import serving


@dataclass(frozen=True)
class Stores:
    metadata_url: str
    storage_url: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def settings(self, folder: Path) -> dict[str, str]:
        return {**on_this_machine(folder), "metadata.url": self.metadata_url, "storage.url": self.storage_url}


@pytest.fixture
def right(oxia_server: OxiaServer, s3_server: S3Server) -> Stores:
    return Stores(oxia_server.url, s3_server.url("doctor"), s3_server.environ)


def test_stores_that_work_are_well_and_nothing_is_left_in_them(right: Stores, tmp_path: Path) -> None:
    report = doctor(right.settings(tmp_path), environ=right.environ, cwd=tmp_path)

    told = {**report.of("ok"), **report.of("warning")}
    assert report.failed == {}
    assert told.keys() >= OF_STORES
    assert "5 puts of 64 KiB" in told["objects: latency"]
    with mock.patch.dict(os.environ, right.environ):
        assert asyncio.run(left_in(right)) == []


async def left_in(stores: Stores) -> list[str]:
    clock = SystemClock()
    async with open_stores(
        storage_url=stores.storage_url, metadata_url=stores.metadata_url, clock=clock, ids=IdSource(clock=clock), telemetry=Telemetry()
    ) as opened:
        start, end = children_of("llog/probes")
        records = await opened.metadata.list(Key(start, "llog"), end)
        objects = [stat.key async for stat in opened.objects.list("")]
    return [*(path for path in records if "doctor" in path), *objects]


def test_beside_a_running_broker_it_is_found(right: Stores, tmp_path: Path) -> None:
    settings = right.settings(tmp_path)
    with serving(tmp_path / "unused", settings=settings, environ=right.environ) as served:
        report = doctor(settings | {"kafka.listeners": f"PLAINTEXT://{served.bootstrap}"}, environ=right.environ, cwd=tmp_path)

    assert report.failed == {}
    assert f"PLAINTEXT://{served.bootstrap}" in report.of("ok")["metadata: brokers"]
    assert "a broker on these settings runs" in report.of("ok")["port: PLAINTEXT"]


@pytest.mark.parametrize(
    ("change", "environ"),
    [
        pytest.param({"/forebay/": "/absent-bucket/"}, {}, id="no such bucket"),
        pytest.param({}, {"AWS_ACCESS_KEY_ID": "nobody"}, id="unknown key"),
        pytest.param({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, id="wrong secret"),
        pytest.param({"region=us-east-1": "region=eu-west-1"}, {}, id="wrong region"),
        pytest.param({}, {"AWS_ACCESS_KEY_ID": "", "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}, id="no credentials"),
    ],
)
def test_a_bucket_that_serve_refuses_is_explained(
    right: Stores, change: Mapping[str, str], environ: Mapping[str, str], tmp_path: Path
) -> None:
    url = right.storage_url
    for old, new in change.items():
        assert old in url
        url = url.replace(old, new)
    settings = right.settings(tmp_path) | {"storage.url": url}
    given = {name: value for name, value in {**right.environ, **environ}.items() if value}

    report = doctor(settings, environ=given, cwd=tmp_path)
    (said,) = refusal(settings, environ=given, cwd=tmp_path)

    assert report.exit_code == 1
    assert report.failed["object store"] == said
    assert {check.partition(":")[0] for check in report.failed} <= {"object store", "objects"}


def test_an_endpoint_where_nobody_listens_is_explained_once(right: Stores, s3_server: S3Server, tmp_path: Path) -> None:
    settings = right.settings(tmp_path) | {"storage.url": right.storage_url.replace(str(s3_server.port), str(free_port()))}

    report = doctor(settings, environ=right.environ, cwd=tmp_path)
    (said,) = refusal(settings, environ=right.environ, cwd=tmp_path)

    assert report.failed == {"object store": said}
    assert report.of("skipped")["objects: put"] == "because the object store gives no answers"


@pytest.mark.parametrize("what", ["nobody there", "another namespace", "no token file", "no TLS", "no Oxia"])
def test_an_oxia_that_serve_refuses_is_explained(right: Stores, s3_server: S3Server, what: str, tmp_path: Path) -> None:
    url = {
        "nobody there": f"oxia://127.0.0.1:{free_port()}/default",
        "another namespace": right.metadata_url.replace("/default", "/other"),
        "no token file": f"{right.metadata_url}?tls=false&token_file=/nowhere/token",
        "no TLS": f"{right.metadata_url}?tls=true",
        "no Oxia": f"oxia://127.0.0.1:{s3_server.port}/default",
    }[what]
    settings = right.settings(tmp_path) | {"metadata.url": url}

    report = doctor(settings, environ=right.environ, cwd=tmp_path)
    (said,) = refusal(settings, environ=right.environ, cwd=tmp_path)

    assert report.failed == {"metadata store": said}
    assert report.of("skipped")["metadata: conditions"] == "because the metadata store cannot be opened"
    assert "objects: put" in report.of("ok")
