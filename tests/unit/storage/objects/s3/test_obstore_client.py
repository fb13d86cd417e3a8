"""What obstore's errors mean."""

import asyncio
import socket
import struct

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.objects.requests import RequestMeter
from storage.objects.s3.credentials import Credentials, CredentialSource
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import Interrupted, Unreached
from storage.objects.s3.obstore_client import ObstoreClient
from tests.kit.scripted_s3 import BUCKET


def role() -> Credentials:
    return Credentials("KEY", "secret", "token", SystemClock().now_ms() / 1_000 + 3_600, "iam-role")


async def test_a_connection_that_is_reset_under_a_put_leaves_open_what_became_of_it() -> None:
    """A server that answers before it has the body, and closes, resets the connection; so may one that has stored the object."""

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    listening = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = ObstoreClient(
        BucketEndpoint(bucket=BUCKET, url=f"http://127.0.0.1:{port}", region="us-east-1", path_style=True),
        credentials=CredentialSource(role, environment={}, clock=SystemClock()),
        meter=RequestMeter(Telemetry()),
    )
    async with listening:
        with pytest.raises(Interrupted):
            await client.put_if_absent("wal/1", [bytes(32 << 20)])
    with pytest.raises(Unreached):
        await client.put_if_absent("wal/1", [b"x"])
    await client.close()
