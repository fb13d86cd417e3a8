import pytest

from forebay.commands.demo.ledger import Ledger
from forebay.commands.demo.replay import ReplayError
from forebay.commands.demo.run import verdict, what_it_took
from forebay.commands.demo.store_use import StoreUse


def ledger(*values: bytes) -> Ledger:
    made = Ledger(1)
    for value in values:
        made.note(0, b"k", value, 0)
    return made


def test_the_verdict_counts_without_separators() -> None:
    many = [b"x"] * 1_234

    assert verdict(ledger(*many), ledger(*many), expected=1_234) == "1234 of 1234 records read back, order and checksums match"


def test_a_mismatch_is_an_error_that_says_what_differs() -> None:
    with pytest.raises(ReplayError) as differing:
        verdict(ledger(b"a", b"b"), ledger(b"a", b"c"), expected=2)

    assert str(differing.value).splitlines() == [
        "2 of 2 records read back, but they differ:",
        "partition 0: the record at offset 1 is not the one that was sent there",
    ]


def test_fewer_records_than_were_to_be_sent_are_no_success() -> None:
    with pytest.raises(ReplayError, match="3 records were planned, 1 were sent"):
        verdict(ledger(b"a"), ledger(b"a"), expected=3)


def test_the_cost_is_that_of_the_requests() -> None:
    use = StoreUse({"put": 61, "get": 0, "list": 1, "stat": 0, "delete": 0}, objects_written=60, bytes_written=3 * 2**20)

    assert what_it_took(use).splitlines() == [
        "wrote 60 objects, 3.0 MiB",
        "on S3 Standard these requests would have cost $0.0003 (61 PUT, 0 GET, 1 LIST; list prices of November 2026)",
    ]
