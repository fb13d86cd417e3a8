"""What an error of gRPC means for the request that met it: was it sent, was it carried out, is it worth another try.

Oxia's own codes (100 and above) are not known to gRPC for Python, which shows them all as UNKNOWN: its messages tell them apart.
A message that comes wrapped ("failed to append to wal: …") says that the request was under way; only bare ones prove that it was not.
From 0.17 on servers use gRPC's own codes and other words. Neither the code nor the reason in a status's details tells a bare message from a
wrapped one there, so the whole message is compared.
"""

from enum import Enum
from typing import Final, NamedTuple

import grpc


class CallFate(Enum):
    NOT_LEADER = "not_leader"  # refused before anything was done; another node may lead
    NOT_SENT = "not_sent"  # no connection: it never left this process
    REFUSED = "refused"  # certainly not carried out, and another try would not be either
    BROKEN_OFF = "broken_off"  # the connection or the server's part in the shard ended meanwhile
    NO_ANSWER = "no_answer"  # the deadline passed
    STUCK = "stuck"  # the shard's log is broken: no write succeeds until the server starts again
    SESSION_GONE = "session_gone"
    NAMESPACE_MISSING = "namespace_missing"
    FAILED = "failed"  # anything else


class Failure(NamedTuple):
    fate: CallFate
    reason: str
    """One line in lower case that names the address."""


_NOT_LEADER: Final = (
    "node is not leader for shard",
    "oxia: node is not leader for shard",
    # A node that is about to lead, or has just ceased to: looked at before the request is given a place in the log.
    "Received message in the wrong state",
)
_NOT_LEADER_WHOLE: Final = frozenset(
    {
        # 0.17 and later: no leader of the shard here, or one that is fenced; no word of the coordinator yet; no term yet.
        "oxia: node is not leader",
        "oxia: server not initialized yet",
        "oxia: invalid status",
    }
)
_NOT_SENT: Final = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving", "empty address list")
_BROKEN_OFF: Final = ("resource is already closed", "operation was cancelled", "operation was aborted", "not initialized yet")
_REFUSED_CODES: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

_CONNECTING: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by an authority of ca_file: correct ca_file in metadata.url"),
    ("Hostname Verification Check failed", "its certificate is for another name: give that by server_name in metadata.url"),
    ("WRONG_VERSION_NUMBER", "what listens there does not speak TLS: remove tls=true from metadata.url"),
    ("Ssl handshake failed", "it ended the TLS handshake: see whether it asks for a certificate (cert_file and key_file in metadata.url)"),
    ("Connection refused", "connection refused: start Oxia there or correct metadata.url"),
    ("Domain name not found", "the name does not resolve: correct metadata.url"),
    ("DNS resolution failed", "the name does not resolve: correct metadata.url"),
    ("http1.x", "what listens there speaks HTTP/1, not Oxia: correct metadata.url"),
    (
        "before receiving SETTINGS",
        "something listens there but does not answer as Oxia does: see whether it hangs or wants TLS (tls=true), or correct metadata.url",
    ),
    (
        "Socket closed",
        "it closes new connections: see whether it wants TLS (tls=true) or a certificate (cert_file and key_file in metadata.url)",
    ),
    ("No route to host", "no route to the host: correct the network or metadata.url"),
)


def read_failure(error: grpc.aio.AioRpcError, address: str) -> Failure:
    code, details = error.code(), error.details() or ""
    fate = _fate_of(code, details)
    match fate:
        case CallFate.NOT_SENT:
            what = next((says for sign, says in _CONNECTING if sign in details), _one_line(details))
        case CallFate.NO_ANSWER:
            what = "no answer in time"
        case CallFate.NAMESPACE_MISSING:
            what = "there is no such namespace: create it there or correct metadata.url"
        case CallFate.STUCK:
            what = f"the shard takes no writes until Oxia is started again: {_one_line(details)}"
        case CallFate.REFUSED if code is grpc.StatusCode.UNIMPLEMENTED:
            what = "what listens there does not speak Oxia's protocol: correct metadata.url"
        case CallFate.REFUSED if code is grpc.StatusCode.UNAUTHENTICATED:
            what = f"it does not let us in ({_one_line(details)}): name a file with a valid token by token_file in metadata.url"
        case CallFate.REFUSED if "unexpected authority" in details:
            what = (
                f"it refuses the address it is called by ({_one_line(details)}): "
                "set featureFlags.authorityValidation to false in the configuration of Oxia's coordinator"
            )
        case _:
            what = f"{code.name}: {_one_line(details)}"
    return Failure(fate, f"oxia at {address}: {what}")


def _fate_of(code: grpc.StatusCode, details: str) -> CallFate:
    if "can not immediately follow" in details:
        return CallFate.STUCK
    if details.startswith(_NOT_LEADER) or details in _NOT_LEADER_WHOLE:
        return CallFate.NOT_LEADER
    if "session not found" in details:
        return CallFate.SESSION_GONE
    if "namespace not found" in details:
        return CallFate.NAMESPACE_MISSING
    if code in _REFUSED_CODES:
        return CallFate.REFUSED
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallFate.NO_ANSWER
    if code is grpc.StatusCode.UNAVAILABLE:
        return CallFate.NOT_SENT if details.startswith(_NOT_SENT) else CallFate.BROKEN_OFF
    if any(sign in details for sign in _BROKEN_OFF):
        return CallFate.BROKEN_OFF
    return CallFate.FAILED


def _one_line(details: str) -> str:
    return " ".join(details.split())[:300]
