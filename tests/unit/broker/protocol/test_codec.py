import struct

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from broker.protocol import apis, codec, fetch, produce
from broker.protocol.wire import ProtocolViolation

V1 = struct.pack(">hhih", 3, 8, 77, 3) + b"cli"
V2 = struct.pack(">hhih", 3, 9, 77, 3) + b"cli"


def pairs() -> list[tuple[int, int]]:
    return [(api.key, version) for api in apis.APIS for version in range(api.served_minimum, api.maximum + 1)]


def producer_id(*, epoch: int = 0) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=codec.as_field(0), error_code=ErrorCode.none, producer_id=ProducerId(5), producer_epoch=i16(epoch)
    )


def test_a_header_of_version_1_ends_with_the_client_id() -> None:
    assert codec.decode_header(memoryview(V1 + b"body")) == (3, 8, 77, "cli", len(V1))


def test_a_header_of_version_2_ends_with_tags_which_are_skipped() -> None:
    frame = memoryview(V2 + b"\x01\x63\x02zz" + b"body")

    assert codec.decode_header(frame) == (3, 9, 77, "cli", len(frame) - 4)


def test_a_client_id_may_be_null_or_empty() -> None:
    assert codec.decode_header(memoryview(struct.pack(">hhih", 3, 8, 77, -1))).client_id is None
    assert codec.decode_header(memoryview(struct.pack(">hhih", 3, 8, 77, 0))).client_id == ""


@pytest.mark.parametrize(("api_key", "version"), [(18, 99), (999, 0), (0, 13), (3, -1)])
def test_a_version_that_is_not_served_still_has_a_header(api_key: int, version: int) -> None:
    header = codec.decode_header(memoryview(struct.pack(">hhih", api_key, version, 77, 3) + b"cli" + b"\xff\xff"))

    assert header[:4] == (api_key, version, 77, "cli")


@pytest.mark.parametrize("length", [-2, 4, 2**15 - 1])
def test_a_client_id_out_of_bounds_is_a_violation(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"length out of bounds: field=client_id length={length} remaining=3"):
        codec.decode_header(memoryview(struct.pack(">hhih", 3, 8, 77, length) + b"cli"))


@pytest.mark.parametrize("frame", [b"", V1[:9], V2, struct.pack(">hhih", 3, 8, 77, 1) + b"\xff"])
def test_a_header_that_is_cut_short_or_not_text_is_a_violation(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="malformed request header"):
        codec.decode_header(memoryview(frame))


def test_tags_follow_the_client_id_exactly_where_kio_says_so() -> None:
    for api_key, version in pairs():
        frame = memoryview(struct.pack(">hhih", api_key, version, 77, -1) + b"\x00")

        flexible = codec.decode_header(frame).body_position == len(frame)

        assert flexible == load_request_schema(api_key, version).__header_schema__.__flexible__, (api_key, version)


@pytest.mark.parametrize("version", [9, 11])
def test_the_response_header_of_produce_is_the_one_kio_names(version: int) -> None:
    flexible = load_response_schema(codec.PRODUCE, version).__header_schema__.__flexible__

    assert flexible
    assert codec.encode_response(codec.PRODUCE, version, 7, produce.ProduceResponse([]))[0][:5] == b"\x00\x00\x00\x07\x00"


def test_the_response_header_of_api_versions_is_always_version_0() -> None:
    shape = codec.response_class(18, 4)
    response = shape(error_code=0, api_keys=(), throttle_time=0)

    assert codec.encode_response(18, 4, 7, response) == [b"\x00\x00\x00\x07" + b"\x00\x00" + b"\x01" + bytes(4) + b"\x00"]
    assert codec.encode_response(18, 0, 7, response) == [b"\x00\x00\x00\x07" + b"\x00\x00" + bytes(4)]


def test_a_body_starts_where_the_header_ends() -> None:
    frame = memoryview(b"header" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 60_000))

    request = codec.decode_request(22, 0, frame, 6)

    assert isinstance(request, InitProducerIdRequest)
    assert request.transactional_id == "t"
    assert codec.milliseconds(request.transaction_timeout) == 60_000
    assert request.producer_id == -1


def test_a_request_that_lost_a_field_later_is_decoded_into_its_older_class() -> None:
    request = codec.decode_request(10, 0, memoryview(b"\x00\x01g"), 0)

    assert request == FindCoordinatorRequest(key="g", key_type=i16(0))  # type: ignore[arg-type]


def test_malformed_bytes_are_a_violation_that_names_api_and_version() -> None:
    with pytest.raises(ProtocolViolation, match="malformed request: api_key=22 version=0 bytes=3"):
        codec.decode_request(22, 0, memoryview(b"\xff\xff\x00"), 0)


def test_bytes_that_are_not_utf_8_are_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="UnicodeDecodeError"):
        codec.decode_request(10, 0, memoryview(b"\x00\x01\xff"), 0)


def test_a_response_is_one_buffer_with_its_header() -> None:
    assert codec.encode_response(22, 1, 7, producer_id()) == [struct.pack(">iihqh", 7, 0, 0, 5, 0)]
    assert codec.encode_response(22, 2, 7, producer_id()) == [struct.pack(">ixihqhx", 7, 0, 0, 5, 0)]


def test_a_value_a_version_cannot_express_is_an_assertion() -> None:
    response = producer_id()
    object.__setattr__(response, "producer_epoch", 2**15)

    with pytest.raises(AssertionError, match="not a value of this version: api_key=22 version=1"):
        codec.encode_response(22, 1, 7, response)


def test_values_of_another_api_are_an_assertion() -> None:
    with pytest.raises(AssertionError, match="values of another API"):
        codec.encode_response(3, 1, 7, producer_id())


def test_a_version_that_is_not_served_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="not a version that is served"):
        codec.decode_request(22, 6, memoryview(b""), 0)
    with pytest.raises(AssertionError, match="not an API that is served"):
        codec.request_class(999, 0)


def test_produce_and_fetch_have_values_of_their_own() -> None:
    assert codec.request_class(codec.PRODUCE, 11) is produce.ProduceRequest
    assert codec.response_class(codec.PRODUCE, 3) is produce.ProduceResponse
    assert codec.request_class(codec.FETCH, 17) is fetch.FetchRequest
    assert codec.response_class(codec.FETCH, 4) is fetch.FetchResponse
    assert codec.encode_response(codec.FETCH, 4, 7, fetch.FetchResponse([])) == [struct.pack(">iii", 7, 0, 0)]


def test_what_is_compiled_in_steps_is_not_compiled_again() -> None:
    for api_key, version in ((22, 1), (10, 0)):
        assert sum(1 for _ in codec.compile_in_steps(api_key, version)) > 1
    compiled = codec._decoder.cache_info().misses, codec._encoder.cache_info().misses

    codec.encode_response(22, 1, 7, producer_id())
    codec.decode_request(10, 0, memoryview(b"\x00\x01g"), 0)

    assert (codec._decoder.cache_info().misses, codec._encoder.cache_info().misses) == compiled
