"""Ids sort as their times do, whatever the clock does."""

import os
import uuid
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ids import Entropy, IdSource
from runtime.ulid import ULID_LENGTH, decode_ulid, encode_ulid, ulid_ms


class Clock:
    def __init__(self, *times_ms: int) -> None:
        self.times_ms = deque(times_ms)

    def now_ms(self) -> int:
        return self.times_ms.popleft() if len(self.times_ms) > 1 else self.times_ms[0]

    def monotonic_s(self) -> float:
        return 0.0


@given(st.integers(0, 2**128 - 1))
def test_a_ulid_survives_the_round_trip(value: int) -> None:
    assert decode_ulid(encode_ulid(value)) == value
    assert len(encode_ulid(value)) == ULID_LENGTH


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_ulids_sort_as_their_numbers_do(one: int, other: int) -> None:
    assert (encode_ulid(one) < encode_ulid(other)) == (one < other)


def test_a_ulid_reads_as_its_specification_does() -> None:
    assert decode_ulid("01ARZ3NDEKTSV4RRFFQ69G5FAV") == 0x01563E3AB5D3D6764C61EFB99302BD5B
    assert decode_ulid("7ZZZZZZZZZZZZZZZZZZZZZZZZZ") == 2**128 - 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "short", "0" * 27, "8" + "0" * 25),
        *(letter * 26 for letter in "IiLlOoUuz_"),
        *("0" * 25 + end for end in ("u", "\n", " ", "\u0663")),
    ],
)
def test_what_is_no_ulid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a ULID"):
        decode_ulid(text)


@given(st.lists(st.integers(0, 2**47), min_size=1, max_size=30))
def test_a_source_never_goes_back_even_if_the_clock_does(times_ms: list[int]) -> None:
    ids = IdSource(clock=Clock(*times_ms))

    found = [ids.next_ulid() for _ in range(len(times_ms) + 5)]
    assert found == sorted(set(found))


@pytest.mark.parametrize("entropy", [os.urandom, lambda count: b"\xff" * count], ids=["random", "greatest"])
def test_no_id_is_ahead_of_the_clock_that_made_it(entropy: Entropy) -> None:
    """Twenty ids a millisecond for two seconds, then thirty thousand in one."""
    times_ms = [1_000 + n // 20 for n in range(40_000)] + [3_001] * 30_000
    ids = IdSource(clock=Clock(*times_ms), entropy=entropy)

    found = [ids.next_ulid() for _ in times_ms]

    assert [ulid_ms(one) for one in found] == times_ms
    assert found == sorted(set(found))


def test_ids_of_a_clock_that_went_back_are_dated_by_its_latest_reading() -> None:
    ids = IdSource(clock=Clock(5_000, 10))

    found = [ids.next_ulid() for _ in range(1_000)]

    assert {ulid_ms(one) for one in found} == {5_000}
    assert found == sorted(set(found))


def test_sources_behind_one_floor_do_not_meet_and_stay_at_its_time() -> None:
    floor = encode_ulid(5_000 << 80 | 77)
    one, other = IdSource(clock=Clock(10)), IdSource(clock=Clock(10))

    found = [source.next_ulid(above=floor) for _ in range(500) for source in (one, other)]

    assert {ulid_ms(each) for each in found} == {5_000}
    assert len(set(found)) == 1_000


def test_an_id_above_a_floor_is_above_it_though_the_clock_is_behind() -> None:
    floor = encode_ulid(5_000 << 80 | 77)

    assert IdSource(clock=Clock(10)).next_ulid(above=floor) > floor


def test_a_random_uuid_is_of_version_4() -> None:
    found = IdSource(clock=Clock(0)).random_uuid()

    assert uuid.UUID(found).version == 4
    assert str(uuid.UUID(found)) == found
