"""A location → an object store, by the clients that the setting `storage.s3_client` names."""

import os
import random
from typing import Literal

from runtime.clock import Clock
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.objects.requests import RequestMeter
from storage.objects.s3.aioboto3_client import Aioboto3Client, credentials_for
from storage.objects.s3.client import DEFAULT_LIMITS, S3Limits
from storage.objects.s3.endpoint import read_authorities, resolve_endpoint
from storage.objects.s3.faults import NoCredentials
from storage.objects.s3.location import S3Location
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.obstore_client import ObstoreClient

S3ClientName = Literal["obstore", "aioboto3"]


async def open_s3(
    location: S3Location,
    *,
    client: S3ClientName,
    clock: Clock,
    chance: random.Random,
    telemetry: Telemetry,
    limits: S3Limits = DEFAULT_LIMITS,
) -> S3ObjectStore:
    """The store; close it in the end. Sends no request to it: `probe` tells whether it can be used.

    `client`: `obstore` carries record bytes while aioboto3 lists and deletes, or `aioboto3` does everything.
    Credentials are those of the environment, else botocore's (profiles, roles). Raise `Unavailable` if there are none, or if a proxy or
    a file of authorities that is named cannot be used.
    """
    endpoint = resolve_endpoint(location, os.environ)
    _ = endpoint.route  # raises
    authorities = read_authorities(endpoint.ca) if endpoint.ca is not None and endpoint.is_https else None
    credentials = credentials_for(endpoint, os.environ, clock=clock, limits=limits)
    meter = RequestMeter(telemetry, root=location.root)
    control = Aioboto3Client(endpoint, credentials=credentials, meter=meter, run=telemetry.run, limits=limits)
    try:
        await credentials.first()
        data = (
            control
            if client == "aioboto3"
            else ObstoreClient(endpoint, credentials=credentials, meter=meter, authorities=authorities, run=telemetry.run, limits=limits)
        )
    except NoCredentials as fault:
        await control.close()
        raise Unavailable(str(fault)) from fault
    return S3ObjectStore(
        location,
        endpoint,
        data=data,
        control=control,
        credentials=credentials,
        clock=clock,
        chance=chance,
        telemetry=telemetry,
        limits=limits,
    )
