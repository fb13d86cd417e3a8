import pytest

from services.versitygw import S3Server
from storage.objects.s3.store import S3ClientName
from tests.kit.botocore_clients import clients_are_made_cheaply

__all__ = ["clients_are_made_cheaply"]


@pytest.fixture(params=["obstore", "aioboto3"])
def client(request: pytest.FixtureRequest) -> S3ClientName:
    name: S3ClientName = request.param
    return name


@pytest.fixture(autouse=True)
def credentials(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
