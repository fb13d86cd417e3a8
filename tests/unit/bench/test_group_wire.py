"""Requests that the benchmark writes by hand, read by our own decoder; answers that our own encoder writes, read by the benchmark."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.response import JoinGroupResponse
from kio.schema.offset_commit.v8.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from bench import group_wire, metadata_wire
from bench.group_wire import Joined
from broker.protocol import codec
from broker.protocol.codec import as_field

MEMBER = Joined(0, 7, "member-1", True)


def decoded(frame: bytes) -> Any:
    payload = memoryview(frame)[4:]
    header = codec.decode_header(payload)
    return codec.decode_request(header.api_key, header.api_version, payload, header.body_position)


def encoded(api_key: int, version: int, values: object) -> bytes:
    return b"".join(map(bytes, codec.encode_response(api_key, version, 0, values)))


@pytest.mark.parametrize(
    "frame",
    [
        group_wire.find_coordinator_request("g"),
        group_wire.join_group_request("g", "", session_timeout_ms=9_000),
        group_wire.sync_group_request("g", MEMBER),
        group_wire.heartbeat_request("g", MEMBER),
        group_wire.offset_commit_request("g", MEMBER, "t", range(2), offset=5),
        metadata_wire.metadata_request(None),
        metadata_wire.metadata_request(["t"]),
    ],
)
def test_a_request_is_a_whole_frame_that_says_how_long_it_is(frame: bytes) -> None:
    body = decoded(frame)

    assert body is not None
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_a_join_names_the_member_and_how_long_it_may_be_silent() -> None:
    body = decoded(group_wire.join_group_request("g", "member-1", session_timeout_ms=9_000))

    assert (body.group_id, body.member_id, body.protocol_type) == ("g", "member-1", "consumer")
    assert codec.milliseconds(body.session_timeout) == codec.milliseconds(body.rebalance_timeout) == 9_000
    assert [(protocol.name, protocol.metadata) for protocol in body.protocols] == [("range", b"")]


def test_a_commit_names_each_partition_once() -> None:
    body = decoded(group_wire.offset_commit_request("g", MEMBER, "t", range(10, 13), offset=5))

    assert (body.group_id, body.member_id, body.generation_id_or_member_epoch) == ("g", "member-1", 7)
    (topic,) = body.topics
    assert topic.name == "t"
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(10, 5), (11, 5), (12, 5)]


@pytest.mark.parametrize(("leader", "is_leader"), [("member-1", True), ("member-2", False), ("", False)])
def test_an_answer_to_a_join_says_who_one_is(leader: str, *, is_leader: bool) -> None:
    answer = JoinGroupResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode.none,
        generation_id=7,  # type: ignore[arg-type]
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        member_id="member-1",
        members=(),
    )

    assert group_wire.joined(encoded(11, 9, answer)) == Joined(0, 7, "member-1", is_leader)


def test_the_error_of_a_heartbeat_is_found() -> None:
    answer = HeartbeatResponse(throttle_time=as_field(3), error_code=ErrorCode.rebalance_in_progress)

    assert group_wire.error_of(encoded(12, 4, answer)) == ErrorCode.rebalance_in_progress


def test_the_errors_of_a_commit_are_those_of_its_partitions() -> None:
    errors = [ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.none]
    partitions = tuple(
        OffsetCommitResponsePartition(partition_index=number, error_code=error)  # type: ignore[arg-type]
        for number, error in enumerate(errors)
    )
    topic = OffsetCommitResponseTopic(name="t", partitions=partitions)  # type: ignore[arg-type]

    assert group_wire.commit_errors(encoded(8, 8, OffsetCommitResponse(throttle_time=as_field(0), topics=(topic,))), "t") == errors
