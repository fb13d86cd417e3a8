import pytest

from forebay.commands.bench import settings
from forebay.commands.bench.settings import Acks, Compression, EndToEndLoad, ProduceLoad, ReadShares, RequestsLoad, shares


def produce_load(*, acks: Acks = Acks.ALL, compression: Compression = Compression.NONE) -> ProduceLoad:
    return ProduceLoad(records=10, record_bytes=100, partitions=12, producers=1, compression=compression, acks=acks, rate=None, warm_up=1)


@pytest.mark.parametrize(("acks", "is_idempotent"), [(Acks.ALL, True), (Acks.LEADER, False), (Acks.NOBODY, False)])
def test_producers_are_idempotent_where_all_replicas_are_waited_for(acks: Acks, is_idempotent: bool) -> None:
    config = settings.produce_config(produce_load(acks=acks))

    assert config["acks"] == acks.value
    assert config["enable.idempotence"] is is_idempotent


@pytest.mark.parametrize("compression", Compression)
def test_the_library_compresses_as_it_was_asked_to(compression: Compression) -> None:
    assert settings.produce_config(produce_load(compression=compression))["compression.type"] == compression.value


def test_results_name_the_batches_that_the_library_makes() -> None:
    load = produce_load()
    config = settings.produce_config(load)

    assert (config["linger.ms"], config["batch.size"]) == (load.linger_ms, load.batch_bytes) == (5, 1_000_000)


def test_a_request_has_one_record_and_five_are_under_way() -> None:
    config = settings.requests_config(RequestsLoad(records=10, record_bytes=100, partitions=12, warm_up=1))

    assert (config["batch.num.messages"], config["linger.ms"], config["max.in.flight"]) == (1, 0, 5)
    assert (config["enable.idempotence"], config["acks"]) == (True, "all")


def test_a_record_from_end_to_end_waits_for_no_other() -> None:
    assert settings.prompt_producer_config()["linger.ms"] == 0
    assert "max.in.flight" not in settings.prompt_producer_config()


def test_consumers_commit_nothing_and_say_where_a_partition_ends() -> None:
    config = settings.reading_config()

    assert (config["enable.auto.commit"], config["enable.partition.eof"], config["auto.offset.reset"]) == (False, True, "error")


@pytest.mark.parametrize(
    ("record_bytes", "producers", "expected"),
    [(1, 1, 100_000), (1_024, 1, 32_768), (1_024, 8, 32_768), (1_024, 100, 2_621), (16 * 2**20, 1, 2), (16 * 2**20, 100, 1)],
)
def test_what_waits_in_all_clients_is_bounded_in_bytes(record_bytes: int, producers: int, expected: int) -> None:
    assert settings.queue_records(record_bytes, producers=producers) == expected


@pytest.mark.parametrize(("record_bytes", "expected"), [(1, 100), (100, 100), (1_024, 64), (65_537, 1), (16 * 2**20, 1)])
def test_a_turn_is_of_many_small_records_or_of_one_that_is_large(record_bytes: int, expected: int) -> None:
    assert settings.turn_records(record_bytes) == expected


@pytest.mark.parametrize(
    ("there", "records", "warm_up", "expected"),
    [
        (1_000, None, None, ReadShares(warm_up=100, measured=900)),
        (1_000, None, 0, ReadShares(warm_up=0, measured=1_000)),
        (1_100, 1_000, None, ReadShares(warm_up=100, measured=1_000)),
        (1_000, 200, None, ReadShares(warm_up=20, measured=200)),
        (1_000, 1_000, None, ReadShares(warm_up=100, measured=900)),
        (1_000, 5_000, 400, ReadShares(warm_up=400, measured=600)),
        (3, None, None, ReadShares(warm_up=0, measured=3)),
        (3, None, 3, ReadShares(warm_up=3, measured=0)),
        (3, 50, None, ReadShares(warm_up=5, measured=-2)),
    ],
)
def test_a_tenth_of_what_is_read_is_a_warm_up(there: int, records: int | None, warm_up: int | None, expected: ReadShares) -> None:
    assert shares(there, records=records, warm_up=warm_up) == expected


@pytest.mark.parametrize(("rate", "seconds", "expected"), [(200.0, 10.0, 2_000), (0.5, 10.0, 5), (0.01, 1.0, 1), (3.0, 0.5, 2)])
def test_a_load_of_seconds_has_as_many_records_as_its_rate_says_and_one_at_least(rate: float, seconds: float, expected: int) -> None:
    assert EndToEndLoad(rate=rate, record_bytes=100, seconds=seconds, warm_up=0).records == expected
