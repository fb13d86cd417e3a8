"""Bytes that no client should send end as a value or as `ProtocolViolation`, in bounded memory, whatever they are."""

import random
import tracemalloc
from collections.abc import Iterator

import pytest

from broker.protocol import codec
from broker.protocol.apis import APIS, Api
from broker.protocol.wire import ELEMENTS_MAX, ProtocolViolation, uvarint
from tests.kit.kafka_values import kio_encoded, random_entity

MUTATIONS = 40
MEMORY_BYTES_MAX = 1_000_000
HUGE_LENGTHS = (
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x80",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff",
)

every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)


def request_bodies(api: Api, *, samples: int) -> Iterator[tuple[int, bytes]]:
    """Legal bodies of every version served."""
    chance = random.Random(api.key)
    for version in range(api.served_minimum, api.maximum + 1):
        structure = codec.request_structure(api.key, version)
        for _ in range(samples):
            body = kio_encoded(random_entity(structure, chance))
            while len(body) > 4_000:
                body = kio_encoded(random_entity(structure, chance))
            yield version, body


def decode(api: Api, version: int, body: bytes | bytearray) -> object | None:
    """The value, or None for a violation; any other exception is the test's failure."""
    try:
        return codec.decode_request(api.key, version, memoryview(body), 0)
    except ProtocolViolation:
        return None


@every_api
def test_a_body_cut_short_at_any_byte_is_a_violation(api: Api) -> None:
    for version, body in request_bodies(api, samples=1):
        for length in range(len(body)):
            with pytest.raises(ProtocolViolation):
                codec.decode_request(api.key, version, memoryview(body)[:length], 0)


@every_api
def test_mutated_bodies_give_a_value_or_a_violation(api: Api) -> None:
    chance = random.Random(-api.key)
    for version, body in request_bodies(api, samples=2):
        for _ in range(MUTATIONS):
            mutated = bytearray(body)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(mutated) + 1)
                mutated[at : at + chance.randrange(3)] = chance.choice((b"\xff", b"\x00", b"\x80", chance.randbytes(2)))

            decode(api, version, mutated)


@every_api
def test_random_bytes_give_a_value_or_a_violation(api: Api) -> None:
    chance = random.Random(api.key)
    for version in range(api.served_minimum, api.maximum + 1):
        for _ in range(MUTATIONS):
            decode(api, version, chance.randbytes(chance.randrange(200)))


@pytest.mark.parametrize("ways", ["in turn", pytest.param("both", marks=pytest.mark.slow)])
@every_api
def test_a_huge_length_anywhere_allocates_nothing_of_that_size(api: Api, ways: str) -> None:
    """Inserted, and in the place of what was there: at twice as many places in both ways takes four times as long."""
    places_max = 60 if ways == "both" else 30
    for version, body in request_bodies(api, samples=1):
        decode(api, version, body)
        tracemalloc.start()
        try:
            for place, at in enumerate(range(0, len(body) + 1, max(1, len(body) // places_max))):
                for number, length in enumerate(HUGE_LENGTHS):
                    for way in (0, 1) if ways == "both" else ((place + number) % 2,):
                        decode(api, version, body[:at] + length + body[at + way * len(length) :])
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert peak_bytes < MEMORY_BYTES_MAX


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        pytest.param(codec.PRODUCE, 11, b"\x00" * 7 + uvarint(ELEMENTS_MAX + 2) + b"\x01\x01\x00" * (ELEMENTS_MAX + 1), id="topics"),
        pytest.param(codec.PRODUCE, 11, b"\x00" * 7 + b"\x01" + uvarint(ELEMENTS_MAX + 1) + b"\x05\x00" * (ELEMENTS_MAX + 1), id="tags"),
        pytest.param(
            codec.FETCH, 12, bytes(25) + b"\x02\x01" + uvarint(ELEMENTS_MAX + 2) + bytes(33 * (ELEMENTS_MAX + 1)), id="partitions"
        ),
        pytest.param(
            codec.FETCH, 12, bytes(25) + b"\x01\x02\x01" + uvarint(ELEMENTS_MAX + 2) + bytes(4 * (ELEMENTS_MAX + 1)), id="forgotten"
        ),
        pytest.param(10, 6, b"\x00" + uvarint(ELEMENTS_MAX + 2) + b"\x01" * (ELEMENTS_MAX + 2), id="strings"),
        pytest.param(18, 4, b"\x01\x01" + uvarint(ELEMENTS_MAX + 1) + b"\x05\x00" * (ELEMENTS_MAX + 1), id="unknown tags"),
    ],
)
def test_a_body_of_more_elements_than_the_bound_is_refused_before_they_are_built(api_key: int, version: int, body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation, match="too many elements"):
            codec.decode_request(api_key, version, memoryview(body), 0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < len(body) + MEMORY_BYTES_MAX


def test_random_headers_give_a_header_or_a_violation() -> None:
    chance = random.Random(0)
    for _ in range(5_000):
        prefix = chance.choice((b"", b"\x00\x12\x00\x04", b"\x00\x03\x00\x0d", b"\x00\x00\x00\x0b\x00\x00\x00\x01"))
        frame = memoryview(prefix + chance.randbytes(chance.randrange(40)))
        try:
            header = codec.decode_header(frame)
        except ProtocolViolation:
            continue

        assert 10 <= header.body_position <= len(frame)
