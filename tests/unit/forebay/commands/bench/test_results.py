import json
from array import array
from typing import Any

import msgspec
import pytest

from forebay.commands.bench.results import BenchLoad, LatencyMs, Measured, bench_report, latency_ms, nearest_rank, report_table
from forebay.commands.bench.settings import Acks, Compression, ConsumeLoad, EndToEndLoad, ProduceLoad, RequestsLoad

PRODUCE = ProduceLoad(
    records=3, record_bytes=100, partitions=12, producers=2, compression=Compression.LZ4, acks=Acks.LEADER, rate=50.0, warm_up=1
)
CONSUME = ConsumeLoad(records=3, record_bytes=None, partitions=12, consumers=2, compression=None, warm_up=1)
END_TO_END = EndToEndLoad(rate=200.0, record_bytes=100, seconds=10.0, warm_up=200)
REQUESTS = RequestsLoad(records=3, record_bytes=100, partitions=12, warm_up=1)
MEASURED = Measured(records=3, size_bytes=300, seconds=0.5, cpu_s=0.25, latencies_s=array("d", (0.003, 0.001, 0.0020004)))


def as_json(load: BenchLoad, measured: Measured = MEASURED) -> Any:
    return json.loads(msgspec.json.encode(bench_report(load, measured, bootstrap="b:9092", topic="t")))


def test_the_names_of_a_result_stay() -> None:
    assert as_json(PRODUCE) == {
        "load": "produce",
        "bootstrap": "b:9092",
        "topic": "t",
        "settings": {
            "records": 3,
            "record_bytes": 100,
            "partitions": 12,
            "producers": 2,
            "compression": "lz4",
            "acks": "1",
            "rate": 50.0,
            "warm_up": 1,
            "linger_ms": 5,
            "batch_bytes": 1_000_000,
        },
        "seconds": 0.5,
        "records": 3,
        "bytes": 300,
        "records_per_s": 6.0,
        "mb_per_s": 0.001,
        "latency_ms": {"p50": 2.0, "p95": 3.0, "p99": 3.0, "max": 3.0},
        "cpu_s": 0.25,
    }


@pytest.mark.parametrize(
    ("load", "name", "settings"),
    [
        (CONSUME, "consume", {"records", "record_bytes", "partitions", "consumers", "compression", "warm_up"}),
        (END_TO_END, "e2e", {"rate", "record_bytes", "seconds", "warm_up", "partitions", "linger_ms"}),
        (REQUESTS, "requests", {"records", "record_bytes", "partitions", "warm_up", "in_flight"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_load_has_its_settings_and_the_rest_is_the_same(load: BenchLoad, name: str, settings: set[str]) -> None:
    found = as_json(load)

    assert found["load"] == name
    assert found["settings"].keys() == settings
    assert list(found) == list(as_json(PRODUCE))


def test_without_latencies_there_is_null() -> None:
    assert as_json(CONSUME, MEASURED._replace(latencies_s=None))["latency_ms"] is None


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(1, 50, 1), (2, 50, 1), (3, 50, 2), (100, 50, 50), (100, 99, 99), (101, 99, 100), (100, 100, 100)]
)
def test_a_quantile_is_a_sample_that_came(count: int, percent: int, expected: int) -> None:
    assert nearest_rank(range(1, count + 1), percent) == expected


def test_latencies_are_put_in_order_and_said_in_milliseconds() -> None:
    seconds = array("d", (number / 1_000 for number in range(1_000, 0, -1)))

    assert latency_ms(seconds) == LatencyMs(p50=500.0, p95=950.0, p99=990.0, max=1_000.0)
    assert latency_ms(array("d")) is None


def test_people_read_requests_where_a_record_is_one() -> None:
    requests = report_table(bench_report(REQUESTS, MEASURED, bootstrap="b:9092", topic="t"))
    consume = report_table(bench_report(CONSUME, MEASURED._replace(latencies_s=None), bootstrap="b:9092", topic="t"))

    assert requests.splitlines()[3:5] == [
        "rate     6 requests/s, 0.00 MB/s",
        "latency  p50 2.00 ms, p95 3.00 ms, p99 3.00 ms, max 3.00 ms",
    ]
    assert consume.splitlines()[2:5] == ["records  3 with 300 bytes in 0.50 s", "rate     6 records/s, 0.00 MB/s", "latency  -"]
