import datetime

from kio.schema.consumer_group_heartbeat.v0.response import ConsumerGroupHeartbeatResponse
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.fetch.v17.request import FetchRequest
from kio.schema.fetch_snapshot.v0.request import PartitionSnapshot, SnapshotId
from kio.schema.metadata.v13.request import MetadataRequest
from kio.schema.produce.v11.response import PartitionProduceResponse
from kio.static.primitive import i32, i64

from broker.protocol.compiler import Field, Structure, describe, to_milliseconds


def field_of(structure: Structure, name: str) -> Field:
    field = structure.find(name)
    assert field is not None
    return field


def test_arrays_structures_and_nulls_are_told_apart() -> None:
    topics = field_of(describe(MetadataRequest), "topics")

    assert topics.array
    assert topics.nullable
    assert isinstance(topics.kafka_type, Structure)
    assert field_of(topics.kafka_type, "name").nullable
    assert field_of(describe(ConsumerGroupHeartbeatResponse), "assignment").nullable


def test_a_uuid_and_a_time_have_no_null_on_the_wire() -> None:
    topics = field_of(describe(MetadataRequest), "topics")

    assert isinstance(topics.kafka_type, Structure)
    assert not field_of(topics.kafka_type, "topic_id").nullable
    assert not field_of(describe(PartitionProduceResponse), "log_append_time").nullable


def test_tags_are_known() -> None:
    structure = describe(FetchRequest)

    assert field_of(structure, "cluster_id").tag == 0
    assert field_of(structure, "replica_state").tag == 1
    assert field_of(structure, "topics").tag is None


def test_a_default_of_a_time_is_in_milliseconds() -> None:
    assert field_of(describe(CreateTopicsRequest), "timeout").absent == 60_000
    assert field_of(describe(PartitionProduceResponse), "log_append_time").absent == -1


def test_what_is_absent_takes_the_default_or_the_zero_of_its_type() -> None:
    structure = describe(MetadataRequest)

    assert field_of(structure, "allow_auto_topic_creation").absent is True
    assert field_of(structure, "include_topic_authorized_operations").absent is False
    assert field_of(structure, "topics").absent is None
    assert field_of(describe(PartitionSnapshot), "snapshot_id").absent == SnapshotId(end_offset=i64(0), epoch=i32(0))


def test_times_become_milliseconds_exactly() -> None:
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, 5_000, tzinfo=datetime.UTC)

    assert to_milliseconds(datetime.timedelta(days=1, milliseconds=-1)) == 86_399_999
    assert to_milliseconds(datetime.timedelta(milliseconds=-5)) == -5
    assert to_milliseconds(moment) == 1_005
    assert to_milliseconds(None) == -1
    assert to_milliseconds(2**63 - 1) == 2**63 - 1


def test_a_class_is_described_once() -> None:
    assert describe(MetadataRequest) is describe(MetadataRequest)
