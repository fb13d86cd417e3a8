"""When a server answers, not only listens."""

import contextlib
import http.client
import socket
import time
from typing import Final

import grpc

from services.ports import HOST

ASK_WITHIN_S: Final = 1.0
SETTLED_S: Final = 0.1
_ASSIGNMENTS: Final = "/io.streamnative.oxia.proto.OxiaClient/GetShardAssignments"
_DEFAULT_NAMESPACE: Final = b"\n\x07default"
"""`ShardAssignmentsRequest{namespace: "default"}` in bytes: one field, so that no generated module is needed here."""


def oxia_answers(port: int, host: str = HOST) -> bool:
    """Whether the shards of the default namespace have a leader: an Oxia that only listens would refuse the first write."""
    if not _listens(host, port):
        return False
    # A standalone Oxia 0.14 that is asked in the instant in which it begins to listen dies of it.
    time.sleep(SETTLED_S)
    with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        watch = channel.unary_stream(_ASSIGNMENTS, request_serializer=_as_is, response_deserializer=_as_is)
        replies = watch(_DEFAULT_NAMESPACE, timeout=ASK_WITHIN_S)
        try:
            return bool(next(replies, b""))
        except grpc.RpcError:
            return False
        finally:
            replies.cancel()


def http_answers(port: int, host: str = HOST) -> bool:
    """Whether a request gets any answer; a refusal (403) is one."""
    connection = http.client.HTTPConnection(host, port, timeout=ASK_WITHIN_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=ASK_WITHIN_S):
        return True
    return False


def _as_is(message: bytes) -> bytes:
    return message
