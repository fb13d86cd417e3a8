"""Our decoders and encoders against kio's encoder, for every version served: equal values, identical bytes."""

import random

import pytest
from kio.schema.index import api_key_map, schema_name_map

from broker.protocol import codec
from broker.protocol.apis import APIS, Api
from broker.protocol.compiler import Structure, compile_decoder, compile_encoder
from tests.kit.kafka_values import (
    as_namespace,
    in_milliseconds,
    kio_encoded,
    projected,
    random_entity,
    with_kio_times,
    with_unknown_tag,
)

COMPILED = [api for api in APIS if api.key not in (codec.PRODUCE, codec.FETCH)]
SAMPLES = 15

compiled_apis = pytest.mark.parametrize("api", COMPILED, ids=lambda api: api.name)


def versions(api: Api) -> range:
    return range(api.served_minimum, api.maximum + 1)


@compiled_apis
def test_a_request_of_every_version_decodes_into_its_newest_shape(api: Api) -> None:
    chance = random.Random(api.key)
    for version in versions(api):
        message = codec.request_structure(api.key, version)
        values = codec.request_shape(api, version)
        for _ in range(SAMPLES):
            request = random_entity(message, chance)
            frame = memoryview(b"header" + kio_encoded(request) + b"trailing bytes")

            decoded = codec.decode_request(api.key, version, frame, 6)

            assert decoded == projected(request, values)
            assert type(decoded) is codec.request_class(api.key, version)


@compiled_apis
def test_a_response_of_every_version_is_written_from_its_newest_shape_as_kio_writes_it(api: Api) -> None:
    chance = random.Random(api.key)
    for version in versions(api):
        message = codec.response_structure(api.key, version)
        values = codec.response_shape(api, version)
        header = (7).to_bytes(4, "big") + (b"\x00" if message.flexible and api.name != "ApiVersions" else b"")
        for _ in range(SAMPLES):
            response = projected(random_entity(message, chance), values)

            encoded = b"".join(codec.encode_response(api.key, version, 7, response))

            expected = with_kio_times(projected(response, message), message)
            assert encoded == header + kio_encoded(expected)


@compiled_apis
def test_a_response_of_a_version_s_own_class_with_kio_s_times_is_written_as_kio_writes_it(api: Api) -> None:
    chance = random.Random(api.key)
    for version in versions(api):
        for _ in range(SAMPLES):
            response = random_entity(codec.response_structure(api.key, version), chance)

            encoded = b"".join(codec.encode_response(api.key, version, 7, response))

            assert encoded.endswith(kio_encoded(response))


@compiled_apis
def test_unknown_tagged_fields_are_skipped_in_every_structure(api: Api) -> None:
    chance = random.Random(api.key)
    for version in versions(api):
        message = codec.request_structure(api.key, version)
        if not message.flexible:
            continue
        later = with_unknown_tag(message, tag=200)
        encode = compile_encoder(later, later)
        for unknown in ("x", "x" * 300):
            request = in_milliseconds(random_entity(message, chance))
            body = bytearray()
            encode(as_namespace(request, unknown=unknown), body)

            decoded = codec.decode_request(api.key, version, memoryview(body), 0)

            assert decoded == projected(request, codec.request_shape(api, version))


def both_ways(message: Structure, chance: random.Random) -> None:
    entity = random_entity(message, chance)
    expected = kio_encoded(entity)
    values = compile_decoder(message, message)(expected)
    encoded = bytearray()
    compile_encoder(message, message)(values, encoded)

    assert values == in_milliseconds(entity)
    assert encoded == expected


@compiled_apis
def test_requests_are_written_and_responses_are_read_as_well(api: Api) -> None:
    chance = random.Random(api.key)
    for version in versions(api):
        both_ways(codec.request_structure(api.key, version), chance)
        both_ways(codec.response_structure(api.key, version), chance)


@pytest.mark.slow
@pytest.mark.parametrize("api_key", api_key_map)
def test_every_message_kio_knows_survives_both_ways(api_key: int) -> None:
    chance = random.Random(api_key)
    for version in schema_name_map[api_key_map[api_key]]:
        for _ in range(3):
            both_ways(codec.request_structure(api_key, version), chance)
            both_ways(codec.response_structure(api_key, version), chance)
