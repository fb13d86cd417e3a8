import pytest
from typer.testing import CliRunner

from forebay.cli import application
from forebay.kafka_client.options import PARTITIONS_MAX
from storage.catalog import topics


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("topic", "consume", "t", "-o", "noon"), '-o "noon" is no place to start'),
        (("topic", "consume", "t", "-f", "%z"), '-f "%z" has %z, which is no field'),
        (("topic", "produce", "t", "-H", "novalue"), '-H "novalue": write NAME=VALUE'),
        (("topic", "produce", "t", "-f", "%k%v"), '-f "%k%v" has nothing between %k and %v'),
        (("topic", "produce", "t", "-K", ""), "-K needs a text that ends each key"),
        (("topic", "produce", "t", "-K", ":", "-f", "%v"), "-f and -K exclude each other"),
        (("topic", "produce", "t", "-K", ":", "-k", "x"), "-k and keys of lines exclude each other"),
        (("topic", "produce", "t", "-f", "%p %v", "-p", "0"), "-p and partitions of lines exclude each other"),
        (("topic", "consume", "t", "--until", "noon"), '--until "noon" is no place to end'),
        (("topic", "consume", "t", "--until", "5", "-o", "6"), "--until 5 is before -o 6"),
        (("topic", "consume", "t", "--until", "end", "-g", "g"), "-g and --until exclude each other"),
        (("topic", "consume", "t", "-K", ":", "-f", "%v"), "-f and -K exclude each other"),
        (("topic", "consume", "--regex", "("), '--regex "(" is no pattern'),
        (("topic", "create", "t", "-c", "novalue"), '-c "novalue": write NAME=VALUE'),
        (("topic", "alter", "t"), "nothing to alter"),
        (("topic", "alter", "t", "--unset", ""), "--unset needs a name"),
        (("topic", "alter", "t", "-c", "retention.ms=1", "--unset", "retention.ms"), "retention.ms is both set and unset"),
        (("topic", "create", "t", "-c", "retention.ms=\udcff"), r'"retention.ms=\xff" is not UTF-8 text'),
        (("topic", "create", "t", "-p", "10001"), "'-p': 10,001 partitions are too many: brokers create 10,000 at most"),
        (("topic", "create", "t", "-r", "10001"), "is not in the range 1<=x<=10000"),
        (("topic", "describe", ""), "a name is not empty"),
        (("topic", "describe", "t\udcff"), r'"t\xff" is not UTF-8 text'),
        (("topic", "produce", "t", "-H", "a\udcff=b"), r'"a\xff" is not UTF-8 text'),
        (("topic", "list", "-o", "yaml"), "'yaml' is not one of 'table', 'json'"),
        (("topic", "list", "--timeout", "soon"), '--timeout "soon" is not a duration'),
        (("topic", "list", "-b", "localhost:port"), "is not HOST:PORT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_told_before_a_broker_is_asked(arguments: tuple[str, ...], phrase: str) -> None:
    ended = CliRunner().invoke(application, [*arguments], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})

    assert (ended.exit_code, ended.stdout) == (2, "")
    assert phrase in ended.stderr


def test_as_many_partitions_as_brokers_create_may_be_asked_for() -> None:
    ended = CliRunner().invoke(application, ["topic", "create", "t", "-p", "10000"], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})

    assert PARTITIONS_MAX == topics.PARTITIONS_MAX == 10_000
    assert ended.exit_code == 3


@pytest.mark.parametrize(("other", "own"), [(("topic", "ls"), ("topic", "list")), (("topic", "rm", "t"), ("topic", "delete", "t"))])
def test_ls_and_rm_are_other_names_of_list_and_delete(other: tuple[str, ...], own: tuple[str, ...]) -> None:
    asked = [CliRunner().invoke(application, [*words], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"}) for words in (other, own)]

    assert asked[0].exit_code == asked[1].exit_code == 3
    assert asked[0].stderr == asked[1].stderr


def test_bootstrap_is_read_from_the_environment_unless_it_is_given() -> None:
    from_environment = CliRunner().invoke(application, ["topic", "list"], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})
    given = CliRunner().invoke(application, ["topic", "list", "-b", "127.0.0.1:2"], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})

    assert (from_environment.exit_code, given.exit_code) == (3, 3)
    assert from_environment.stderr == "Cannot reach 127.0.0.1:1 (connection refused). Set -b HOST:PORT or FOREBAY_BOOTSTRAP.\n"
    assert given.stderr.startswith("Cannot reach 127.0.0.1:2 ")
