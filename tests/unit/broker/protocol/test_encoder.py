import datetime
import struct
import uuid
from itertools import pairwise

import pytest
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse, SupportedFeatureKey
from kio.schema.consumer_group_heartbeat.v0.response import ConsumerGroupHeartbeatResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v0 import response as v0
from kio.schema.metadata.v10 import response as v10
from kio.schema.metadata.v13.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.static.primitive import i16, i32
from kio.static.protocol import Entity

from broker.protocol.codec import as_field
from broker.protocol.compiler import ENCODED_PER_STEP, compile_encoder, compile_stepwise_encoder, describe


def encoded(value: Entity, as_class: type[Entity]) -> bytes:
    out = bytearray()
    compile_encoder(describe(as_class), describe(type(value)))(value, out)
    return bytes(out)


def metadata(*, name: str | None = "t", rack: str | None = None, throttle_ms: int = 0) -> MetadataResponse:
    return MetadataResponse(
        throttle_time=as_field(throttle_ms),
        brokers=(MetadataResponseBroker(node_id=i32(1), host="h", port=i32(9092), rack=rack),),  # type: ignore[arg-type]
        topics=(
            MetadataResponseTopic(error_code=ErrorCode.none, name=name, topic_id=uuid.UUID(int=1), partitions=()),  # type: ignore[arg-type]
        ),
        error_code=ErrorCode.none,
    )


def test_a_version_without_a_field_leaves_it_out() -> None:
    body = encoded(metadata(rack="r", throttle_ms=9), v0.MetadataResponse)

    broker = struct.pack(">ii", 1, 1) + b"\x00\x01h" + struct.pack(">i", 9092)
    topic = struct.pack(">ih", 1, 0) + b"\x00\x01t" + struct.pack(">i", 0)
    assert body == broker + topic


def test_a_field_the_values_lack_takes_its_default() -> None:
    body = encoded(metadata(), v10.MetadataResponse)

    assert body.endswith(struct.pack(">i", -(2**31)) + b"\x00")


def test_a_time_may_be_an_integer_or_a_timedelta() -> None:
    as_integer = metadata(throttle_ms=1_500)
    as_timedelta = metadata()
    object.__setattr__(as_timedelta, "throttle_time", datetime.timedelta(seconds=1.5))

    assert encoded(as_integer, MetadataResponse) == encoded(as_timedelta, MetadataResponse)


def test_tagged_fields_are_written_in_order_and_only_when_they_differ_from_their_default() -> None:
    plain = ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=(ApiVersion(api_key=i16(3), min_version=i16(0), max_version=i16(13)),),
        throttle_time=as_field(0),
    )
    feature = SupportedFeatureKey(name="f", min_version=i16(0), max_version=i16(1))
    tagged = ApiVersionsResponse(
        error_code=plain.error_code,
        api_keys=plain.api_keys,
        throttle_time=plain.throttle_time,
        zk_migration_ready=True,
        supported_features=(feature,),
    )
    head = struct.pack(">hBhhhxi", 0, 2, 3, 0, 13, 0)

    assert encoded(plain, ApiVersionsResponse) == head + b"\x00"
    assert encoded(tagged, ApiVersionsResponse) == head + b"\x02" + b"\x00\x08\x02\x02f\x00\x00\x00\x01\x00" + b"\x03\x01\x01"


def test_a_null_structure_is_one_negative_byte() -> None:
    response = ConsumerGroupHeartbeatResponse(
        throttle_time=as_field(0), error_code=ErrorCode.none, member_epoch=i32(1), heartbeat_interval=as_field(5)
    )

    assert encoded(response, ConsumerGroupHeartbeatResponse).endswith(b"\xff\x00")


def test_a_null_where_the_version_has_none_is_an_error_of_the_programmer() -> None:
    with pytest.raises(AttributeError):
        encoded(metadata(name=None), v0.MetadataResponse)


def test_a_number_too_large_for_its_field_is_an_error_of_the_programmer() -> None:
    with pytest.raises(struct.error):
        encoded(metadata(throttle_ms=2**31), MetadataResponse)


def large_metadata(partition_count: int) -> MetadataResponse:
    partitions = tuple(
        MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=i32(number),
            leader_id=i32(1),  # type: ignore[arg-type]
            leader_epoch=i32(0),
            replica_nodes=(i32(1),),  # type: ignore[arg-type]
            isr_nodes=(i32(1),),  # type: ignore[arg-type]
        )
        for number in range(partition_count)
    )
    topic = MetadataResponseTopic(error_code=ErrorCode.none, name="t", topic_id=None, partitions=partitions)  # type: ignore[arg-type]
    return MetadataResponse(throttle_time=as_field(0), brokers=(), topics=(topic,), error_code=ErrorCode.none)


@pytest.mark.parametrize("partition_count", [0, 1, ENCODED_PER_STEP, 1_000])
def test_no_step_writes_more_than_its_elements(partition_count: int) -> None:
    structure = describe(MetadataResponse)
    values, out = large_metadata(partition_count), bytearray()
    sizes = [0, *(len(out) for _ in compile_stepwise_encoder(structure, structure)(values, out))]
    partition_bytes = len(encoded(large_metadata(1), MetadataResponse)) - len(encoded(large_metadata(0), MetadataResponse))

    assert bytes(out) == encoded(values, MetadataResponse)
    assert len(sizes) - 1 >= partition_count // ENCODED_PER_STEP
    assert all(later - earlier <= (ENCODED_PER_STEP + 2) * partition_bytes for earlier, later in pairwise([*sizes, len(out)]))
