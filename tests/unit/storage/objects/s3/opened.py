"""S3 stores on a scripted server, quick to give up."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.objects.s3 import backoff, multipart, object_store, obstore_client
from storage.objects.s3.location import S3Location
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName, open_s3
from tests.unit.storage.objects.s3.scripted import BUCKET


@asynccontextmanager
async def opened(
    endpoint: str, client: S3ClientName, *, prefix: str = "", telemetry: Telemetry | None = None
) -> AsyncIterator[S3ObjectStore]:
    location = S3Location(bucket=BUCKET, prefix=prefix, endpoint=endpoint, region="us-east-1", path_style=True)
    store = await open_s3(location, client=client, clock=SystemClock(), chance=random.Random(1), telemetry=telemetry or Telemetry())
    try:
        yield store
    finally:
        await store.close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, nothing waited for at the end, and credentials that every server of the tests takes."""
    monkeypatch.setattr(backoff, "PAUSE_S_MAX", 0.005)
    monkeypatch.setattr(obstore_client, "SETTLE_S", 0.0)  # the process goes on
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFOREBAYTESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def in_three_parts(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An object that goes up in three parts, which are as small as no S3 server takes them: they are hashed, sent and compared sooner."""
    monkeypatch.setattr(object_store, "MULTIPART_ABOVE_BYTES", 1 << 18)
    monkeypatch.setattr(multipart, "PART_BYTES", 1 << 20)
    return bytes(range(251)) * ((5 << 19) // 251)
