from hypothesis import given
from hypothesis import strategies as st

from forebay.commands.demo.replay import Ledger, differences, record_checksum

entries = st.tuples(st.binary(max_size=8), st.binary(max_size=8), st.integers(min_value=-(2**63), max_value=2**63 - 1))


def ledger(*partitions: list[bytes]) -> Ledger:
    made = Ledger(len(partitions))
    for partition, values in enumerate(partitions):
        for value in values:
            made.note(partition, b"key", value, 0)
    return made


def test_the_same_records_in_the_same_order_do_not_differ() -> None:
    sent, read = ledger([b"a", b"b"], [], [b"c"]), ledger([b"a", b"b"], [], [b"c"])

    assert list(differences(sent, read)) == []
    assert (read.record_count, read.counts()) == (3, [2, 0, 1])


def test_a_changed_record_is_named_by_its_offset() -> None:
    assert list(differences(ledger([b"a", b"b"], [b"c"]), ledger([b"a", b"x"], [b"c"]))) == [
        "partition 0: the record at offset 1 is not the one that was sent there"
    ]


def test_records_that_changed_places_are_found() -> None:
    assert list(differences(ledger([b"a", b"b"]), ledger([b"b", b"a"]))) == [
        "partition 0: the record at offset 0 is not the one that was sent there"
    ]


def test_missing_and_surplus_records_are_counted() -> None:
    assert list(differences(ledger([b"a", b"b"], [b"c"]), ledger([b"a"], [b"c", b"d"]))) == [
        "partition 0: 2 records were sent, 1 were read",
        "partition 1: 1 records were sent, 2 were read",
    ]


@given(entries, entries)
def test_records_that_differ_anywhere_have_other_checksums(one: tuple[bytes, bytes, int], other: tuple[bytes, bytes, int]) -> None:
    assert (record_checksum(*one) == record_checksum(*other)) == (one == other)


def test_a_byte_that_moves_from_key_to_value_is_noticed() -> None:
    assert record_checksum(b"ab", b"c", 0) != record_checksum(b"a", b"bc", 0)
