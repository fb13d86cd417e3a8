import grpc
import pytest

from storage.metadata.oxia.calls import CallFate, read_failure

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused"


@pytest.mark.parametrize(
    ("code", "details", "fate"),
    [
        (grpc.StatusCode.UNKNOWN, "node is not leader for shard 3", CallFate.NOT_LEADER),
        (grpc.StatusCode.UNKNOWN, "oxia: node is not leader for shard", CallFate.NOT_LEADER),
        (grpc.StatusCode.UNKNOWN, "Received message in the wrong state. In FENCED, should be LEADER.", CallFate.NOT_LEADER),
        (grpc.StatusCode.ABORTED, "oxia: node is not leader", CallFate.NOT_LEADER),
        (grpc.StatusCode.UNAVAILABLE, "oxia: server not initialized yet", CallFate.NOT_LEADER),
        (grpc.StatusCode.FAILED_PRECONDITION, "oxia: invalid status", CallFate.NOT_LEADER),
        (grpc.StatusCode.UNKNOWN, "oxia: server not initialized yet", CallFate.NOT_LEADER),
        # The same words about a request that had its place in the log already.
        (grpc.StatusCode.UNKNOWN, "oxia: failed to append to wal: node is not leader for shard 3", CallFate.FAILED),
        (grpc.StatusCode.ABORTED, "oxia: failed to append to wal: oxia: node is not leader", CallFate.FAILED),
        (grpc.StatusCode.FAILED_PRECONDITION, "oxia: failed to append to wal: oxia: invalid status", CallFate.FAILED),
        (grpc.StatusCode.UNAVAILABLE, "oxia: failed to append to wal: oxia: server not initialized yet", CallFate.BROKEN_OFF),
        (grpc.StatusCode.UNKNOWN, "oxia: failed to append to wal: oxia: resource is already closed", CallFate.BROKEN_OFF),
        # Other words under the codes that refusals come with.
        (grpc.StatusCode.ABORTED, "oxia: operation was aborted", CallFate.BROKEN_OFF),
        (grpc.StatusCode.UNAVAILABLE, "oxia: resource unavailable", CallFate.BROKEN_OFF),
        (grpc.StatusCode.FAILED_PRECONDITION, "oxia: invalid term", CallFate.FAILED),
        (grpc.StatusCode.UNKNOWN, "oxia: resource is already closed", CallFate.BROKEN_OFF),
        (
            grpc.StatusCode.UNKNOWN,
            "oxia: failed to append to wal: 9 can not immediately follow 7: oxia: invalid next offset",
            CallFate.STUCK,
        ),
        (grpc.StatusCode.UNKNOWN, "oxia: session not found", CallFate.SESSION_GONE),
        (grpc.StatusCode.UNKNOWN, "oxia: namespace not found", CallFate.NAMESPACE_MISSING),
        (grpc.StatusCode.UNAVAILABLE, REFUSED, CallFate.NOT_SENT),
        (grpc.StatusCode.UNAVAILABLE, "DNS resolution failed for nobody:1: C-ares status is not ARES_SUCCESS", CallFate.NOT_SENT),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", CallFate.BROKEN_OFF),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", CallFate.BROKEN_OFF),
        (grpc.StatusCode.UNAVAILABLE, "keepalive watchdog timeout", CallFate.BROKEN_OFF),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", CallFate.NO_ANSWER),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service io.streamnative.oxia.proto.OxiaClient", CallFate.REFUSED),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", CallFate.REFUSED),
        (grpc.StatusCode.INTERNAL, "anything", CallFate.FAILED),
        (grpc.StatusCode.CANCELLED, "", CallFate.FAILED),
    ],
)
def test_only_what_proves_that_nothing_was_done_is_certain(code: grpc.StatusCode, details: str, fate: CallFate) -> None:
    failure = read_failure(grpc.aio.AioRpcError(code, details=details), "oxia.example:6648")

    assert failure.fate is fate
    assert failure.reason.startswith("oxia at oxia.example:6648: ")
    assert "\n" not in failure.reason


def test_a_refused_connection_names_the_fix() -> None:
    failure = read_failure(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, details=REFUSED), "127.0.0.1:1")

    assert failure.reason == "oxia at 127.0.0.1:1: connection refused: start Oxia there or correct metadata.url"
