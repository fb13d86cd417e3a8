import pytest

from forebay.commands.demo.replay import Ledger, ReplayError
from forebay.commands.demo.run import Compacted, StoreUse, verdict, what_a_gib_costs, what_it_took


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
    use = StoreUse({"put": 61, "get": 0, "list": 1, "head": 0, "delete": 0}, objects_written=60, bytes_written=3 * 2**20)

    assert what_it_took(use).splitlines() == [
        "wrote 60 objects, 3.0 MiB",
        "on S3 Standard these requests would have cost $0.0003 (61 PUT, 0 GET, 1 LIST; list prices of November 2026)",
    ]


def test_what_a_gib_costs_counts_the_requests_of_brokers_and_of_the_compactor() -> None:
    use = StoreUse({"put": 64, "get": 10, "list": 0, "head": 0, "delete": 9}, objects_written=64, bytes_written=8 * 2**20)
    done = Compacted(objects=64, segments=6, gets=70, written_bytes=8 * 2**20, seconds=0.2)

    # 128 times 70 PUTs at $5 a million and 80 GETs at $0.40 a million
    assert what_a_gib_costs(use, done, flush_interval="250ms") == (
        "on S3 Standard a GiB written at this load, compacted, read twice and deleted would cost $0.0489 of requests: a flush every "
        "250ms makes objects of 128 KiB\n"
        "a broker busy enough to fill its objects pays less than $0.001 for the PUTs of a GiB (forebay cost estimate 50MiB)"
    )
