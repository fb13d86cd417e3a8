"""A bucket that keeps versions keeps what brokers delete: a probe of a byte every half minute, for ever."""

import asyncio
import os
from typing import Final

from forebay.commands.doctor.finding import Checks, warning
from process.settings.notation import scheme_of
from runtime.clock import Clock
from runtime.telemetry import Telemetry
from storage.objects.requests import RequestMeter
from storage.objects.s3.aioboto3_client import Aioboto3Client, credentials_for
from storage.objects.s3.endpoint import resolve_endpoint
from storage.objects.s3.faults import RequestFault
from storage.objects.s3.location import parse_s3_url

VERSIONS: Final = "objects: versions"
ASK_S_MAX: Final = 15.0


async def look_at_versions(url: str, checks: Checks, *, clock: Clock) -> None:
    """Say so if the bucket of `url` keeps versions; nothing if it does not, or the question is refused: no broker needs to ask it."""
    if scheme_of(url) != "s3":
        return
    endpoint = resolve_endpoint(parse_s3_url(url), os.environ)
    client = Aioboto3Client(endpoint, credentials=credentials_for(endpoint, os.environ, clock=clock), meter=RequestMeter(Telemetry()))
    try:
        async with asyncio.timeout(ASK_S_MAX):
            keeps = await client.keeps_versions()
    except (RequestFault, TimeoutError):
        return
    finally:
        await client.close()
    if keeps:
        checks.add(
            warning(
                VERSIONS,
                "the bucket keeps versions of what is deleted: of .probe/ alone up to 86,400 a month and idle broker. "
                "Give it a lifecycle rule that ends noncurrent versions (NoncurrentVersionExpiration) and expired delete markers",
            )
        )
