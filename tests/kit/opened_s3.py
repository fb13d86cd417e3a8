"""S3 stores on a scripted server, quick to give up."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.objects.s3.client import S3Limits
from storage.objects.s3.location import S3Location
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName, open_s3
from tests.kit.scripted_s3 import BUCKET, Reply, Request, ScriptedS3, error

QUICK = S3Limits(pause_s_max=0.005, settle_s=0.0, credentials_retry_pause_s=0.0)
"""Short pauses, and nothing is waited for at the end: the process goes on."""
SMALL_PARTS = replace(QUICK, multipart_above_bytes=1 << 18, part_bytes=1 << 20)
"""Parts are as small as no S3 server takes them: they are hashed, sent and compared sooner."""
IN_THREE_PARTS = bytes(range(251)) * ((5 << 19) // 251)
"""An object that goes up in three of those parts."""


@asynccontextmanager
async def opened(
    endpoint: str,
    client: S3ClientName,
    *,
    prefix: str = "",
    telemetry: Telemetry | None = None,
    ca_file: str | None = None,
    limits: S3Limits = QUICK,
) -> AsyncIterator[S3ObjectStore]:
    location = S3Location(bucket=BUCKET, prefix=prefix, endpoint=endpoint, region="us-east-1", path_style=True, ca_file=ca_file)
    clock, chance, telemetry = SystemClock(), random.Random(1), telemetry or Telemetry()
    store = await open_s3(location, client=client, clock=clock, chance=chance, telemetry=telemetry, limits=limits)
    try:
        yield store
    finally:
        await store.close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that every server of the tests takes, and nothing else of this machine's environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFOREBAYTESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def without_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A machine without any credentials: `folder` is where they are looked for, in `credentials` and `config`."""
    hurry(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return folder


def takes_only(server: ScriptedS3, token: Callable[[], str], *, reply: Reply | None = None) -> None:
    """Let `server` refuse requests that are not signed with the token that is valid at the time."""
    refused = reply or error(400, "ExpiredToken", "The provided token has expired.")

    async def rule(request: Request) -> Reply | None:
        return None if request.headers.get("x-amz-security-token") == token() else refused

    server.add(rule, times=1_000_000)


async def uses_both_clients(store: S3ObjectStore, key: str) -> None:
    await store.put_if_absent(key, [b"x"])
    assert bytes(await store.get_range(key, 0, 1)) == b"x"
    assert [stat.key async for stat in store.list(key)] == [key]
    await store.delete_many([key])


def ending_in(life_s: float) -> str:
    """The moment as issuers of credentials write it."""
    return (datetime.now(UTC) + timedelta(seconds=life_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
