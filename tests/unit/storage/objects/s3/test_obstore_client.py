"""Credentials that come from elsewhere than the environment, as obstore is given them; and what its errors mean."""

import asyncio
import socket
import struct

import pytest

from runtime.clock import SystemClock
from storage.objects.s3.client import Credentials
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import Interrupted, NoCredentials, Unreached
from storage.objects.s3.obstore_client import ObstoreClient
from tests.unit.storage.objects.s3.scripted import BUCKET, ScriptedS3


def endpoint(server: ScriptedS3) -> BucketEndpoint:
    return BucketEndpoint(bucket=BUCKET, url=server.endpoint, region="us-east-1", path_style=True)


async def test_credentials_of_a_role_are_asked_for_again_before_they_expire(server: ScriptedS3) -> None:
    asked = 0

    async def credentials() -> Credentials:
        nonlocal asked
        asked += 1
        # The second ones hold.
        return Credentials(
            f"KEY{asked}", "secret", f"token{asked}", SystemClock().now_ms() / 1_000 + (200 if asked == 1 else 3_600), "iam-role"
        )

    client = ObstoreClient(endpoint(server), credentials=credentials)
    for number in range(3):
        await client.put_if_absent(f"wal/{number}", [b"x"])
    await client.close()

    assert [request.headers["x-amz-security-token"] for request in server.requests] == ["token1", "token2", "token2"]
    assert asked == 2


async def test_a_request_without_credentials_fails_and_says_why(server: ScriptedS3) -> None:
    async def credentials() -> Credentials:
        raise NoCredentials("the role is gone")

    client = ObstoreClient(endpoint(server), credentials=credentials)
    with pytest.raises(Interrupted, match="the role is gone"):
        await client.put_if_absent("wal/1", [b"x"])
    await client.close()

    assert server.requests == []


async def test_a_connection_that_is_reset_under_a_put_leaves_open_what_became_of_it() -> None:
    """A server that answers before it has the body, and closes, resets the connection; so may one that has stored the object."""

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    listening = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = ObstoreClient(
        BucketEndpoint(bucket=BUCKET, url=f"http://127.0.0.1:{port}", region="us-east-1", path_style=True), credentials=role
    )
    async with listening:
        with pytest.raises(Interrupted):
            await client.put_if_absent("wal/1", [bytes(32 << 20)])
    with pytest.raises(Unreached):
        await client.put_if_absent("wal/1", [b"x"])
    await client.close()


async def role() -> Credentials:
    return Credentials("KEY", "secret", "token", SystemClock().now_ms() / 1_000 + 3_600, "iam-role")
