import pytest
from typer.testing import CliRunner

from forebay.cli import application

LOADS = ("produce", "consume", "e2e", "requests")


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("produce", "--compression", "brotli"), "'brotli' is not one of 'none', 'lz4', 'zstd', 'snappy', 'gzip'"),
        (("produce", "--acks", "2"), "'2' is not one of 'all', '1', '0'"),
        (("produce", "--records", "0"), "0 is not in the range 1<=x<=50000000"),
        (("produce", "--rate", "0"), "Invalid value for '--rate': 0 is not more than 0"),
        (("produce", "--rate", "-5"), "Invalid value for '--rate': -5 is not more than 0"),
        (("produce", "--rate", "nan"), "nan is not more than 0"),
        (("produce", "--rate", "inf"), "inf is too large: 10,000,000 at most"),
        (("produce", "-p", "10001"), "10,001 partitions are too many: brokers create 10,000 at most"),
        (("produce", "--producers", "0"), "0 is not in the range 1<=x<=100"),
        (("produce", "--topic", ""), "a name is not empty"),
        (("produce", "-c", "novalue"), '-c "novalue": write NAME=VALUE'),
        (("produce", "-b", "localhost:port"), "is not HOST:PORT"),
        (("produce", "--timeout", "soon"), '--timeout "soon" is not a duration'),
        (("consume", "--topic", "t", "--record-bytes", "5"), "--record-bytes and --compression are for a topic that is written before"),
        (("consume", "--topic", "t", "--compression", "lz4"), "--record-bytes and --compression are for a topic that is written before"),
        (("e2e", "--rate", "0"), "Invalid value for '--rate': 0 is not more than 0"),
        (("e2e", "--seconds", "0"), "Invalid value for '--seconds': 0 is not more than 0"),
        (("e2e", "--record-bytes", "15"), "15 is not in the range 16<=x<="),
        (("e2e", "--rate", "1e6", "--seconds", "1000"), "--rate 1e+06 for --seconds 1000 is too much: 50,000,000 records at most"),
        (("requests", "--records", "0"), "0 is not in the range 1<=x<=50000000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_told_before_a_broker_is_asked(arguments: tuple[str, ...], phrase: str) -> None:
    ended = CliRunner().invoke(application, ["bench", *arguments], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})

    assert (ended.exit_code, ended.stdout) == (2, "")
    assert phrase in ended.stderr


@pytest.mark.parametrize("load", LOADS)
def test_a_broker_that_is_not_there_is_named_in_one_line(load: str) -> None:
    ended = CliRunner().invoke(application, ["bench", load], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})

    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr == "Cannot reach 127.0.0.1:1 (connection refused). Set -b HOST:PORT or FOREBAY_BOOTSTRAP.\n"


@pytest.mark.parametrize("load", LOADS)
def test_help_says_that_compression_gains_nothing_and_that_the_client_is_no_broker(load: str) -> None:
    words = " ".join(CliRunner().invoke(application, ["bench", load, "--help"]).stdout.split())

    assert "Values are random bytes" in words
    assert "The client is librdkafka under Python" in words
