from collections.abc import AsyncIterator

import pytest

from storage.objects.s3.store import S3ClientName
from tests.kit.botocore_clients import clients_are_made_cheaply
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
