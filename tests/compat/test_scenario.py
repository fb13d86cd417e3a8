"""What counts as a difference, and as a step; what a client.toml may say."""

import json
from pathlib import Path

import pytest

from tests.compat.clients import ClientError, read
from tests.compat.codecs import codecs_of
from tests.compat.results import Result, apis_of, steady, write
from tests.compat.results import read as read_result
from tests.compat.running import complaints_of, parse
from tests.compat.scenario import STEPS, Said, differences, digest, expected
from tests.kit.record_batches import record_batch

CODECS = ("gzip",)
TOML = """
library = "lib"
version = "1"
toolchain = "python"
codecs = ["gzip"]
in_make_test = true
"""


def perfect() -> list[Said]:
    return [Said(step, saw=value) for step, value in expected(CODECS).items()]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some-client" / "client.toml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_client_that_saw_everything_differs_in_nothing() -> None:
    assert differences(perfect(), codecs=CODECS, lacks={}) == []


def test_a_digest_is_that_of_the_sorted_lines() -> None:
    # printf 'a\nb\n' | sha256sum
    assert digest(["b", "a"]) == "911169ddaaf146aff539f58c26c489af3b892dff0fe283c1c264c65ae5aa59a2"


def test_each_kind_of_difference_is_one_sentence() -> None:
    said = perfect()
    said[STEPS.index("seek")] = Said("seek", saw={"offset": 8, "key": "key-22"})
    said[STEPS.index("consume")] = Said("consume", failed="TimeoutError: nothing came")
    said = [one for one in said if one.step != "offsets"]
    said += [Said("list_groups", saw={"listed": True}), Said("dance")]

    assert differences(said, codecs=CODECS, lacks={"delete_group": "no call"}) == [
        "dance: no such step",
        "consume: failed: TimeoutError: nothing came",
        'seek: saw {"key": "key-22", "offset": 8}, expected {"key": "key-22", "offset": 7}',
        "offsets: not played",
        "list_groups: played 2 times",
        "delete_group: played, though client.toml says that the library lacks it",
    ]


def test_a_step_that_is_lacking_need_not_be_played() -> None:
    said = [one for one in perfect() if one.step != "seek"]

    assert differences(said, codecs=CODECS, lacks={"seek": "no call"}) == []


def test_one_is_not_true() -> None:
    said = [Said("cluster", saw={"brokers": True, "controller": 1}) if one.step == "cluster" else one for one in perfect()]

    assert len(differences(said, codecs=CODECS, lacks={})) == 1


def test_only_lines_of_steps_are_steps() -> None:
    lines = [
        '{"step": "seek", "saw": null}',
        '{"step": "consume", "failed": "why"}',
        '{"step": "both", "saw": 1, "failed": "why"}',
        "[1]",
        "some warning",
    ]

    said, wrong = parse("\n".join(lines))
    assert said == [Said("seek"), Said("consume", failed="why")]
    assert wrong == [f"printed what is no step: {line}" for line in lines[2:]]


def test_the_codec_of_every_batch_of_a_topic_is_told() -> None:
    records = b"".join(bytes(record_batch(b"x" * 100, codec=codec)) for codec in (0, 1, 2, 3, 4, 0))

    assert list(codecs_of(records)) == ["none", "gzip", "snappy", "lz4", "zstd", "none"]
    assert list(codecs_of(b"")) == []


def test_a_broker_that_failed_unseen_by_the_client_is_a_difference() -> None:
    fine = {"event": "group", "level": "info"}
    failed = {"event": "request_failed", "level": "error", "client_id": "c"}
    violated = {"event": "protocol_violation", "level": "warning"}

    assert complaints_of([fine], is_alive=True) == []
    assert complaints_of([fine, failed, violated], is_alive=True) == [f"the broker said: {failed}", f"the broker said: {violated}"]
    assert complaints_of([fine], is_alive=False) == ["the broker ended before the client"]


def test_a_client_toml_is_read(tmp_path: Path) -> None:
    client = read(written(tmp_path, TOML + '[lacks]\nseek = "no call"\n'))

    assert (client.name, client.library, client.version, client.codecs) == ("some-client", "lib", "1", ("gzip",))
    assert client.lacks == {"seek": "no call"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TOML + "in_make_tests = true", "unknown key in_make_tests"),
        (TOML.replace('version = "1"', "version = 1"), "version is a int, expected a str"),
        (TOML.replace('version = "1"', ""), "version is missing"),
        (TOML.replace('"python"', '"cobol"'), "no toolchain cobol; there are "),
        (TOML.replace('"gzip"', '"zip"'), "codecs names zip"),
        (TOML + '[lacks]\nseeking = "no call"', "lacks names seeking"),
        (TOML + 'provided = ["produce"]', "provided names produce"),
        ("library", "is not TOML"),
    ],
)
def test_a_client_toml_that_cannot_be_right_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ClientError, match=r"some-client/client\.toml") as raised:
        read(written(tmp_path, text))

    assert said in str(raised.value)


def test_results_name_apis_as_kafka_does_and_leave_out_a_refused_first_api_versions() -> None:
    assert apis_of([(0, 9), (0, 7), (18, 99), (18, 3)]) == {"Produce": (7, 9), "ApiVersions": (3,)}


def test_an_unsteady_api_stays_in_the_results_and_is_not_compared(tmp_path: Path) -> None:
    client = read(written(tmp_path, TOML + 'unsteady = ["OffsetForLeaderEpoch"]'))
    often = {"Fetch": (11,), "OffsetForLeaderEpoch": (3,)}
    rarely = {"Fetch": (11,)}

    write(Result(client=client.name, library="lib", version="1", apis=often, lacks={}), client, tmp_path)
    write(Result(client=client.name, library="lib", version="1", apis=rarely, lacks={}), client, tmp_path)
    assert read_result(tmp_path / "some-client.json").apis == often
    assert steady(often, client) == steady(rarely, client)
    assert list(json.loads((tmp_path / "some-client.json").read_text())) == ["library", "version", "apis", "lacks"]
