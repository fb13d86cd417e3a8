"""What no client should send, one by one: the error of the reference or a closed connection, and everybody else goes on."""

import datetime
import importlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker.protocol import apis, codec
from broker.protocol.wire import ELEMENTS_MAX
from runtime.clock import SystemClock
from tests.kit.kafka_values import kio_encoded, random_entity
from tests.kit.raw_client import API_VERSIONS, RawClient, frame_of, header, is_serving, prefixed
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served, serving

TOPIC = "t"
MAX_REQUEST_BYTES = 4 * 1024 * 1024
PRODUCE, FETCH, METADATA, CREATE_TOPICS = 0, 1, 3, 19
HUGE_VARINT = b"\xff\xff\xff\xff\x7f"
"""2^35 - 1, the longest length that a compact array or string can claim."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    settings = {"kafka.auto_create_topics": "false", "kafka.max_request_bytes": "4MiB", "storage.max_buffer_bytes": "64MiB"}
    with serving(None, settings=settings, afresh=True) as broker:
        with RawClient(broker.kafka_port) as client:
            assert client.ask(create_topic(TOPIC)).topics[0].error_code is ErrorCode.none
        yield broker
        assert broker.metrics()["forebay_unexpected_errors_total"] == 0


@pytest.fixture
def bystander(served: Served) -> Iterator[RawClient]:
    """Somebody else's connection, which is as good afterwards as it was before."""
    with RawClient(served.kafka_port) as client:
        yield client
        assert client.ask(produce(TOPIC, record_batch(base_timestamp=now_ms()))).responses[0].partition_responses[0].error_code == 0
        assert served.is_alive


def now_ms() -> int:
    return SystemClock().now_ms()


def create_topic(name: str) -> Any:
    module: Any = importlib.import_module("kio.schema.create_topics.v5.request")
    topic = module.CreatableTopic(name=name, num_partitions=2, replication_factor=1, assignments=(), configs=())
    return module.CreateTopicsRequest(topics=(topic,), timeout=datetime.timedelta(seconds=30), validate_only=False)


def produce(topic: str, *records: bytes | bytearray | None, acks: int = -1, version: int = 9) -> Any:
    """One batch per partition, from partition 0 on."""
    module: Any = importlib.import_module(f"kio.schema.produce.v{version}.request")
    partitions = tuple(
        module.PartitionProduceData(index=index, records=None if batch is None else bytes(batch)) for index, batch in enumerate(records)
    )
    data = (module.TopicProduceData(name=topic, partition_data=partitions),)
    return module.ProduceRequest(transactional_id=None, acks=acks, timeout=datetime.timedelta(seconds=30), topic_data=data)


def metadata_body(*, topics: bytes) -> bytes:
    """Of v9, with this for the array of topics."""
    return topics + b"\x01\x00\x00\x00"


def closes(served: Served, data: bytes) -> bool:
    with RawClient(served.kafka_port) as client:
        client.send_bytes(data)
        return client.is_closed_by_broker()


@pytest.mark.parametrize("length", [MAX_REQUEST_BYTES + 1, 100 * 1024 * 1024 + 1, 2**31 - 1, -1, -(2**31)])
def test_a_frame_of_an_impossible_length(served: Served, bystander: RawClient, length: int) -> None:
    assert closes(served, struct.pack(">i", length) + b"\x00" * 100)


@pytest.mark.parametrize("size", range(10))
def test_a_frame_too_short_for_a_header(served: Served, bystander: RawClient, size: int) -> None:
    assert closes(served, prefixed(header(API_VERSIONS, 0)[:size]))


@pytest.mark.parametrize(
    "broken",
    [
        struct.pack(">hhih", METADATA, 9, 1, 30_000) + b"short",
        struct.pack(">hhih", METADATA, 9, 1, -2) + b"negative",
        struct.pack(">hhih", METADATA, 9, 1, 2) + b"\xff\xfe" + b"\x00" + metadata_body(topics=b"\x01"),
        header(METADATA, 9, tags=HUGE_VARINT) + metadata_body(topics=b"\x01"),
        header(METADATA, 9, tags=b"\x01\x00" + HUGE_VARINT) + metadata_body(topics=b"\x01"),
        header(METADATA, 9, tags=b"\xff\xff\xff\xff\xff\xff\x01"),
    ],
    ids=["name past the end", "negative name", "name not utf-8", "count of tags", "size of a tag", "varint without end"],
)
def test_a_header_that_is_none(served: Served, bystander: RawClient, broken: bytes) -> None:
    assert closes(served, prefixed(broken))


@pytest.mark.parametrize("api_key", [4, 7, 9999, -1, 32_767, -(2**15)])
def test_an_unknown_api(served: Served, bystander: RawClient, api_key: int) -> None:
    assert closes(served, prefixed(header(api_key, 0)))


@pytest.mark.parametrize("api", [api for api in apis.APIS if api.key != API_VERSIONS], ids=lambda api: api.name)
def test_unknown_versions(served: Served, bystander: RawClient, api: apis.Api) -> None:
    for version in {-1, api.served_minimum - 1, api.maximum + 1, 32_767} - {-2}:
        assert closes(served, prefixed(header(api.key, version) + bytes(50))), version


@pytest.mark.parametrize("version", [5, 32_767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(served: Served, bystander: RawClient, version: int) -> None:
    with RawClient(served.kafka_port) as client:
        client.send(header(API_VERSIONS, version, correlation_id=9) + b"\x00from the future")
        refused = client.answer(API_VERSIONS, 0, correlation_id=9)
        client.send(header(API_VERSIONS, 0, correlation_id=10))
        again = client.answer(API_VERSIONS, 0, correlation_id=10)

    assert refused.error_code is ErrorCode.unsupported_version
    assert API_VERSIONS in {found.api_key for found in refused.api_keys}
    assert again.error_code is ErrorCode.none


@pytest.mark.parametrize("api", apis.APIS, ids=lambda api: api.name)
def test_bodies_that_end_early(served: Served, bystander: RawClient, api: apis.Api) -> None:
    for version in range(api.served_minimum, api.maximum + 1):
        structure = codec.request_structure(api.key, version)
        body = max((kio_encoded(random_entity(structure, random.Random(seed))) for seed in range(20)), key=len)
        if not body:
            continue  # versions 0 to 2 of ApiVersions say nothing
        for size in {0, 1, len(body) // 2, len(body) - 1} - {len(body)}:
            assert closes(served, prefixed(header(api.key, version) + body[:size])), (version, size)


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (METADATA, 9, metadata_body(topics=HUGE_VARINT)),
        (METADATA, 12, metadata_body(topics=b"\x80\x80\x80\x80\x08")),
        (METADATA, 9, metadata_body(topics=b"\x02" + HUGE_VARINT)),
        (METADATA, 1, struct.pack(">i", 2**31 - 1)),
        (METADATA, 1, struct.pack(">i", -2)),
        (METADATA, 1, struct.pack(">ih", 1, 32_767)),
        (PRODUCE, 9, b"\x00" + struct.pack(">hi", -1, 1000) + HUGE_VARINT),
        (PRODUCE, 9, b"\x00" + struct.pack(">hi", -1, 1000) + b"\x02\x02t" + HUGE_VARINT),
        (PRODUCE, 9, b"\x00" + struct.pack(">hi", -1, 1000) + b"\x02\x02t\x02\x00\x00\x00\x00" + HUGE_VARINT),
        (PRODUCE, 3, struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)),
        (PRODUCE, 3, struct.pack(">hhiihciii", -1, -1, 1000, 1, 1, b"t", 1, 0, 2**31 - 1)),
        (FETCH, 12, struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, -1) + HUGE_VARINT),
        (FETCH, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**31 - 1)),
        (CREATE_TOPICS, 5, HUGE_VARINT),
        (CREATE_TOPICS, 2, struct.pack(">i", 2**31 - 1)),
        (API_VERSIONS, 3, HUGE_VARINT),
        (60, 0, b"\x00" + HUGE_VARINT),
    ],
)
def test_lengths_beyond_the_frame(served: Served, bystander: RawClient, api_key: int, version: int, body: bytes) -> None:
    before = served.rss_bytes()

    assert closes(served, prefixed(header(api_key, version) + body))
    assert served.rss_bytes() - before < 64 * 1024 * 1024


def test_more_elements_than_one_request_may_have(served: Served, bystander: RawClient) -> None:
    partitions = struct.pack(">i", ELEMENTS_MAX + 1) + struct.pack(">ii", 0, -1) * (ELEMENTS_MAX + 1)
    body = struct.pack(">hhiihc", -1, -1, 1000, 1, 1, b"t") + partitions

    assert len(body) < MAX_REQUEST_BYTES
    assert closes(served, prefixed(header(PRODUCE, 3) + body))


def test_unknown_tags_are_stepped_over_wherever_they_stand(served: Served, bystander: RawClient) -> None:
    tags = b"\x02" + b"\x63\x03abc" + b"\xff\xff\xff\xff\x0f\x00"
    records = bytes(record_batch(base_timestamp=now_ms()))
    length = len(records) + 1
    compact_length = bytes([length & 0x7F | 0x80, length >> 7]) if length > 127 else bytes([length])
    topic = b"\x02t" + b"\x02" + struct.pack(">i", 0) + compact_length + records + tags + tags
    body = b"\x00" + struct.pack(">hi", -1, 1000) + b"\x02" + topic + tags
    with RawClient(served.kafka_port) as client:
        client.send(header(METADATA, 9, tags=tags) + b"\x02\x02t" + tags + b"\x00\x00\x00" + tags)
        metadata = client.answer(METADATA, 9)
        client.send(header(PRODUCE, 9, tags=tags) + body)
        produced = client.answer(PRODUCE, 9)

    assert [topic.error_code for topic in metadata.topics] == [ErrorCode.none]
    assert produced.responses[0].partition_responses[0].error_code is ErrorCode.none


@pytest.mark.parametrize("tags", [b"\x01\x63\x05abc", b"\x02\x63\x00", HUGE_VARINT, b"\x01\x63" + HUGE_VARINT])
def test_tags_that_end_outside_the_frame(served: Served, bystander: RawClient, tags: bytes) -> None:
    assert closes(served, prefixed(header(METADATA, 9) + b"\x01\x00\x00\x00" + tags))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (None, ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (bytes(60), ErrorCode.invalid_record),
        (record_batch(crc=1), ErrorCode.corrupt_message),
        (record_batch()[:-1], ErrorCode.invalid_record),
        (record_batch(batch_length=2**31 - 1), ErrorCode.invalid_record),
        (record_batch(batch_length=-1), ErrorCode.corrupt_message),
        (record_batch() + record_batch(), ErrorCode.invalid_record),
        (record_batch() + b"x", ErrorCode.invalid_record),
        (record_batch(magic=0), ErrorCode.invalid_record),
        (record_batch(magic=1), ErrorCode.invalid_record),
        (record_batch(base_offset=1), ErrorCode.invalid_record),
        (record_batch(record_count=0), ErrorCode.invalid_record),
        (record_batch(record_count=-1, last_offset_delta=-2), ErrorCode.invalid_record),
        (record_batch(record_count=2), ErrorCode.invalid_record),
        (record_batch(last_offset_delta=7), ErrorCode.invalid_record),
        (record_batch(record_count=2**31 - 1, last_offset_delta=2**31 - 2), ErrorCode.invalid_record),
        (record_batch(attributes=0x20), ErrorCode.invalid_record),
        (record_batch(producer_id=5), ErrorCode.invalid_record),
        (record_batch(producer_id=-9, producer_epoch=0, base_sequence=0), ErrorCode.invalid_record),
        (record_batch(attributes=0x10), ErrorCode.invalid_txn_state),
        (record_batch(attributes=0x08), ErrorCode.invalid_timestamp),
        (record_batch(base_timestamp=2**62), ErrorCode.invalid_timestamp),
        (record_batch(codec=5), ErrorCode.unsupported_compression_type),
        (record_batch(bytes(1_100_000)), ErrorCode.message_too_large),
    ],
)
@pytest.mark.parametrize("version", [3, 11])
def test_a_batch_that_kafka_refuses(
    served: Served, bystander: RawClient, batch: bytes | bytearray | None, expected: ErrorCode, version: int
) -> None:
    """Also its neighbour in the request is appended all the same."""
    good = record_batch(base_timestamp=now_ms())
    with RawClient(served.kafka_port) as client:
        answer = client.ask(produce(TOPIC, batch, good, version=version))
        refused, appended = answer.responses[0].partition_responses

    assert (refused.error_code, refused.base_offset) == (expected, -1)
    assert appended.error_code is ErrorCode.none
    assert version < 8 or refused.error_message


def test_zstd_in_a_version_before_zstd(served: Served, bystander: RawClient) -> None:
    with RawClient(served.kafka_port) as client:
        answer = client.ask(produce(TOPIC, record_batch(codec=4), version=6))

    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.unsupported_compression_type


def test_acks_that_mean_nothing(served: Served, bystander: RawClient) -> None:
    with RawClient(served.kafka_port) as client:
        answer = client.ask(produce(TOPIC, record_batch(), acks=2))

    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.invalid_required_acks


def test_a_refused_batch_that_nobody_waits_for_closes_the_connection(served: Served, bystander: RawClient) -> None:
    assert closes(served, prefixed(frame_of(produce(TOPIC, record_batch(crc=1), acks=0))))


def test_a_batch_that_nobody_waits_for_is_not_answered(served: Served, bystander: RawClient) -> None:
    with RawClient(served.kafka_port) as client:
        client.send(frame_of(produce(TOPIC, record_batch(), acks=0), correlation_id=1), header(API_VERSIONS, 0, correlation_id=2))

        assert client.answer(API_VERSIONS, 0, correlation_id=2).error_code is ErrorCode.none


@pytest.mark.parametrize("offset", [-1, 2**63 - 1, -(2**63)])
def test_an_offset_that_is_none(served: Served, bystander: RawClient, offset: int) -> None:
    module: Any = importlib.import_module("kio.schema.fetch.v12.request")
    partition = module.FetchPartition(partition=1, fetch_offset=offset, partition_max_bytes=1000)
    request = module.FetchRequest(
        max_wait=datetime.timedelta(seconds=30),
        min_bytes=1,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(module.FetchTopic(topic=TOPIC, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    with RawClient(served.kafka_port) as client:
        answer = client.ask(request).responses[0].partitions[0]

    assert answer.error_code is ErrorCode.offset_out_of_range
    assert answer.high_watermark >= answer.log_start_offset == 0


def test_a_client_that_goes_in_the_middle_of_a_frame(served: Served, bystander: RawClient) -> None:
    frame = prefixed(frame_of(produce(TOPIC, record_batch(b"x" * 100_000))))
    for size in (1, 3, 4, 20, 20_000, len(frame) - 1):
        with RawClient(served.kafka_port) as client:
            client.send_bytes(frame[:size])
        with RawClient(served.kafka_port) as client:
            client.send_bytes(frame[:size])
            client.finish_sending()

            assert client.is_closed_by_broker()


def test_frames_cut_to_pieces_are_as_good_as_whole_ones(served: Served, bystander: RawClient) -> None:
    frames = prefixed(*[header(API_VERSIONS, 0, correlation_id=number) for number in range(5)])
    with RawClient(served.kafka_port) as client:
        for byte in frames:
            client.send_bytes(bytes([byte]))

        assert [client.answer(API_VERSIONS, 0, correlation_id=number).error_code for number in range(5)] == [ErrorCode.none] * 5


def test_something_that_is_no_kafka_at_all(served: Served, bystander: RawClient) -> None:
    assert closes(served, b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n")
    assert closes(served, bytes.fromhex("16030100f8010000f40303") + bytes(200)), "a TLS hello"
    assert is_serving(served.kafka_port)


def test_all_of_it_is_counted(served: Served) -> None:
    with RawClient(served.kafka_port) as client:
        client.send(header(9999, 0))
        assert client.is_closed_by_broker()

    assert served.metrics()["forebay_protocol_violations_total"] > 0
