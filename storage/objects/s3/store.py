"""A location → an object store, by the clients that the setting `storage.s3_client` names."""

import os
import random
from typing import Literal

from runtime.clock import Clock
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.objects.s3.aioboto3_client import Aioboto3Client
from storage.objects.s3.diagnosis import NO_CREDENTIALS
from storage.objects.s3.endpoint import has_keys, resolve_endpoint
from storage.objects.s3.faults import NoCredentials, RequestFault
from storage.objects.s3.location import S3Location
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.obstore_client import ObstoreClient

S3ClientName = Literal["obstore", "aioboto3"]


async def open_s3(
    location: S3Location, *, client: S3ClientName, clock: Clock, chance: random.Random, telemetry: Telemetry
) -> S3ObjectStore:
    """The store; close it in the end. Sends no request to it: `probe` tells whether it can be used.

    `client`: `obstore` carries record bytes while aioboto3 lists and deletes, or `aioboto3` does everything.
    Credentials are those of the environment, else botocore's (profiles, roles). Raise `Unavailable` if there are none.
    """
    endpoint = resolve_endpoint(location, os.environ)
    control = Aioboto3Client(endpoint)
    native = has_keys(os.environ)
    if not native:
        try:
            await control.credentials()
        except RequestFault as fault:
            await control.close()
            raise Unavailable(
                f"{NO_CREDENTIALS} ({fault})" if isinstance(fault, NoCredentials) else f"no S3 credentials: {fault}"
            ) from fault
    data = control if client == "aioboto3" else ObstoreClient(endpoint, credentials=None if native else control.credentials)
    return S3ObjectStore(location, endpoint, data=data, control=control, clock=clock, chance=chance, telemetry=telemetry)
