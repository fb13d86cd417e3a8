"""S3 stores on a scripted server, quick to give up."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.objects.s3 import backoff
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
    """Short pauses, and credentials that every server of the tests takes."""
    monkeypatch.setattr(backoff, "PAUSE_S_MAX", 0.005)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFOREBAYTESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
