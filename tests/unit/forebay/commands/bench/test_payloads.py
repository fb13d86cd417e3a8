import os
import zlib

import pytest

from forebay.commands.bench.clients import VALUES_BYTES_MAX, Payloads, random_values, value_count
from forebay.commands.bench.settings import BATCH_BYTES, BATCH_RECORDS, RECORD_BYTES_MAX


@pytest.mark.parametrize("record_bytes", [16, 100, 1_000, 1_024, 10_000, 60_000])
def test_no_batch_has_a_value_twice(record_bytes: int) -> None:
    count = value_count(record_bytes)

    assert count >= 1_000
    assert count >= min(BATCH_RECORDS, BATCH_BYTES // record_bytes)


@pytest.mark.parametrize("record_bytes", [1, 1_024, 1_000_000, RECORD_BYTES_MAX])
def test_values_of_any_size_fit_in_memory(record_bytes: int) -> None:
    assert 1 <= value_count(record_bytes) <= VALUES_BYTES_MAX // record_bytes


def test_values_are_distinct_and_do_not_shrink() -> None:
    values = random_values(1_024, entropy=os.urandom)
    together = b"".join(values[:500])

    assert len(set(values)) == len(values) == value_count(1_024)
    assert {len(value) for value in values} == {1_024}
    assert len(zlib.compress(together)) >= len(together)


def test_values_come_in_turn_and_begin_again() -> None:
    payloads = Payloads([{"value": b"%d" % number} for number in range(5)])

    found = [[message["value"] for message in payloads.next(count)] for count in (2, 2, 2, 9, 1)]

    assert found == [[b"0", b"1"], [b"2", b"3"], [b"4"], [b"0", b"1", b"2", b"3", b"4"], [b"0"]]
