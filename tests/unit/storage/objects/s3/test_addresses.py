"""Where requests go, for AWS and for other stores, with both clients. Nothing is sent."""

import os
from datetime import timedelta

import obstore
import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.objects.requests import RequestMeter
from storage.objects.s3.aioboto3_client import Aioboto3Client, credentials_for
from storage.objects.s3.endpoint import resolve_endpoint
from storage.objects.s3.location import parse_s3_url
from storage.objects.s3.obstore_client import ObstoreClient
from tests.kit.opened_s3 import hurry

ADDRESSES = [
    ("s3://my-bucket?region=eu-west-1", "https://my-bucket.s3.eu-west-1.amazonaws.com/wal/1"),
    ("s3://my.bucket?region=eu-west-1", "https://s3.eu-west-1.amazonaws.com/my.bucket/wal/1"),
    ("s3://my-bucket?region=eu-west-1&path_style=true", "https://s3.eu-west-1.amazonaws.com/my-bucket/wal/1"),
    ("s3://my-bucket?endpoint=http://127.0.0.1:7070", "http://127.0.0.1:7070/my-bucket/wal/1"),
    ("s3://my-bucket?endpoint=https://s3.example&path_style=false", "https://my-bucket.s3.example/wal/1"),
]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.mark.parametrize(("url", "address"), ADDRESSES)
async def test_obstore_and_aioboto3_mean_the_same_address(url: str, address: str) -> None:
    endpoint = resolve_endpoint(parse_s3_url(url), {})
    credentials = credentials_for(endpoint, os.environ, clock=SystemClock())
    signed = obstore.sign(
        await ObstoreClient(endpoint, credentials=credentials, meter=RequestMeter(Telemetry()))._store(),
        "GET",
        "wal/1",
        timedelta(minutes=1),
    )
    aioboto3 = Aioboto3Client(endpoint, credentials=credentials, meter=RequestMeter(Telemetry()))
    client = await aioboto3._opened()
    presigned = await client.generate_presigned_url("get_object", Params={"Bucket": endpoint.bucket, "Key": "wal/1"})
    await aioboto3.close()

    assert signed.partition("?")[0] == address
    assert presigned.partition("?")[0] == address
