"""Credentials that a program of the operator's tells: it is asked again, and ended when it hangs."""

import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import Unavailable
from storage.objects.s3.store import S3ClientName
from tests.kit.botocore_clients import clients_are_made_cheaply
from tests.kit.opened_s3 import QUICK, ending_in, opened, takes_only, uses_both_clients, without_credentials
from tests.kit.scripted_s3 import ScriptedS3

__all__ = ["clients_are_made_cheaply"]


@pytest.fixture(params=["obstore", "aioboto3"])
def client(request: pytest.FixtureRequest) -> S3ClientName:
    name: S3ClientName = request.param
    return name


@pytest.fixture
async def server() -> AsyncIterator[ScriptedS3]:
    async with ScriptedS3.running() as server:
        yield server


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return without_credentials(monkeypatch, tmp_path)


async def test_a_process_is_asked_again_when_its_credentials_are_refused(
    environment: Path, client: S3ClientName, server: ScriptedS3
) -> None:
    def write(token: str) -> None:
        told = {"Version": 1, "AccessKeyId": "KEY", "SecretAccessKey": "secret", "SessionToken": token, "Expiration": ending_in(3_600)}
        (environment / "told.json").write_text(json.dumps(told))

    valid = "token-1"
    takes_only(server, lambda: valid)
    write("token-1")
    (environment / "config").write_text(f"[default]\ncredential_process = cat {environment}/told.json\n")
    async with opened(server.endpoint, client) as store:
        await uses_both_clients(store, "wal/1")
        write("token-2")
        valid = "token-2"
        await uses_both_clients(store, "wal/2")


async def test_a_process_that_hangs_is_ended(environment: Path, client: S3ClientName) -> None:
    pid = environment / "pid"
    (environment / "hang.py").write_text(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    (environment / "config").write_text(f"[default]\ncredential_process = {sys.executable} -S -E {environment}/hang.py\n")
    with pytest.raises(Unavailable, match="S3 credentials could not be got: no answer in"):
        async with opened("http://127.0.0.1:1", client, limits=replace(QUICK, credentials_timeout_s=0.5)):
            pass
    if pid.exists() and (number := pid.read_text()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
