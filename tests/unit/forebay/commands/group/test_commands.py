import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from typer.testing import CliRunner

from forebay.cli import application
from forebay.commands.group.commands import _rows_of
from tests.unit.forebay.commands.group.group_examples import CONNECTION, FakeAdmin, described, member

RESET = ("group", "reset-offsets", "g")


def run(*arguments: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(application, [*arguments], env={"FOREBAY_BOOTSTRAP": "127.0.0.1:1"})
    return ended.exit_code, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ((*RESET, "--all-topics"), "say where to, with one of --to-earliest"),
        ((*RESET, "--all-topics", "--to-earliest", "--to-offset", "3"), "--to-earliest and --to-offset exclude each other"),
        ((*RESET, "--to-earliest"), "say which topics: either --topic TOPIC[:0,1], or --all-topics"),
        ((*RESET, "--to-earliest", "--topic", "t", "--all-topics"), "say which topics"),
        ((*RESET, "--to-earliest", "--topic", "t:x"), '--topic "t:x" is no topic'),
        ((*RESET, "--topic", "t", "--to-datetime", "noon"), '--to-datetime "noon" is no time'),
        ((*RESET, "--topic", "t", "--by-duration", "5"), '--by-duration "5" needs a unit'),
        ((*RESET, "--topic", "t", "--by-duration", "-5s"), '--by-duration "-5s" is negative'),
        ((*RESET, "--topic", "t", "--to-earliest", "--export", "-o", "json"), "--export has a format of its own"),
        (("group", "lag", "g", "-n", "3"), "-n is for --watch"),
        (("group", "lag", "g", "--watch", "--interval", "0s"), '--interval "0s" must be longer than nothing'),
        (("group", "list", "--state", "tired"), "'tired' is not one of"),
        (("group", "list", "-b", "localhost:port"), "is not HOST:PORT"),
        (("topic", "consume", "t", "-g", "g", "-o", "7"), '-o "7" is not for a group'),
        (("topic", "consume", "t", "-g", "g", "-p", "1"), "-g and -p exclude each other"),
        (("topic", "consume", "t", "-g", ""), "a name is not empty"),
        ((*RESET, "--topic", "t", "--to-timestamp", f"{2**63}"), "is not in the range 0<=x<=9223372036854775807"),
        ((*RESET, "--topic", "t\udcff", "--to-earliest"), r'"t\xff" is not UTF-8 text'),
        (("group", "reset-offsets", "", "--topic", "t", "--to-earliest"), "a name is not empty"),
        (("group", "describe", ""), "a name is not empty"),
        (("group", "describe", "g\udcff"), r'"g\xff" is not UTF-8 text'),
        (("group", "lag", "g\udcff"), r'"g\xff" is not UTF-8 text'),
        (("group", "delete", "g", "g\udcff", "--yes"), r'"g\xff" is not UTF-8 text'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_told_before_a_broker_is_asked(arguments: tuple[str, ...], phrase: str) -> None:
    code, data, talk = run(*arguments)

    assert (code, data) == (2, "")
    assert phrase in talk


@pytest.mark.parametrize(
    ("held", "phrase"),
    [(b"\xff,0,1\n", "is not UTF-8 text: byte 0 is no part of it"), (b"x" * 200_000, "cannot be read as rows: field larger than")],
    ids=["no text", "no rows"],
)
def test_a_file_that_is_something_else_is_wrong_use(tmp_path: Path, held: bytes, phrase: str) -> None:
    rows = tmp_path / "offsets.csv"
    rows.write_bytes(held)

    code, _, talk = run(*RESET, "--from-file", str(rows))

    assert code == 2
    assert f'--from-file "{rows}" {phrase}' in talk


def test_the_mark_that_spreadsheets_write_is_no_part_of_a_name(tmp_path: Path) -> None:
    rows = tmp_path / "offsets.csv"
    rows.write_bytes("\ufefforders,0,7\n".encode())

    assert _rows_of(rows) == ["orders,0,7"]


def test_a_file_that_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    rows = tmp_path / "offsets.csv"
    rows.write_text("orders,0\n")

    code, _, talk = run(*RESET, "--from-file", str(rows))

    assert code == 2
    assert f'--from-file "{rows}" line 1: write topic,partition,offset' in talk


@pytest.mark.parametrize(
    "command", [("list",), ("describe", "g"), ("lag",), ("delete", "g"), ("reset-offsets", "g", "--all-topics", "--to-latest")]
)
def test_a_cluster_that_cannot_be_reached_is_3(command: tuple[str, ...]) -> None:
    code, data, talk = run("group", *command)

    assert (code, data) == (3, "")
    assert talk == "Cannot reach 127.0.0.1:1 (connection refused). Set -b HOST:PORT or FOREBAY_BOOTSTRAP.\n"


def answering(monkeypatch: pytest.MonkeyPatch, admin: Any) -> None:
    monkeypatch.setattr("forebay.commands.group.commands.open_connection", lambda *_: (CONNECTION, admin))


def test_what_a_broker_does_not_authorize_is_5(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, FakeAdmin(groups={"g": KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)}))

    code, data, talk = run("group", "describe", "g")

    assert (code, data) == (5, "")
    assert talk == 'Group "g": Group authorization failed.\n'


def test_of_several_groups_those_that_can_be_are_deleted_and_of_each_it_is_told_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"a": described("a"), "b": described("b", member("app")), "c": described("c"), "d": described("d")}
    admin = FakeAdmin(
        groups={**there, "secret": KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)}, refused={"c": KafkaError(KafkaError.NON_EMPTY_GROUP)}
    )
    answering(monkeypatch, admin)

    code, data, talk = run("group", "delete", "a", "b", "nowhere", "secret", "c", "d", "a", "--yes", "-o", "json")

    assert (code, admin.deletions) == (1, ["a", "c", "d"])
    assert talk.splitlines() == [
        (
            'Group "b" cannot be deleted: it has 1 member (state Stable). Stop its consumers first; '
            "they are shown by: forebay group describe b"
        ),
        'Group "nowhere" does not exist. List them: forebay group list',
        'Group "secret": Group authorization failed.',
        'Deleted group "a".',
        'Group "c" was not deleted: it has members. Stop its consumers first.',
        'Deleted group "d".',
        "Deleted 2 of 6 groups.",
    ]
    document = json.loads(data)
    assert document["deleted"] == ["a", "d"]
    assert [one["name"] for one in document["failed"]] == ["b", "nowhere", "secret", "c"]
    assert document["failed"][1]["error"] == 'Group "nowhere" does not exist. List them: forebay group list'


def test_quiet_deletions_say_only_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, FakeAdmin(groups={"a": described("a")}))

    code, data, talk = run("group", "delete", "a", "nowhere", "--yes", "-q")

    assert (code, data) == (1, "")
    assert talk == 'Group "nowhere" does not exist. List them: forebay group list\n'


@pytest.mark.parametrize(
    ("groups", "names", "code", "talk"),
    [
        ({}, ("g",), 4, 'Group "g" does not exist. List them: forebay group list\n'),
        ({"g": KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)}, ("g",), 5, 'Group "g": Group authorization failed.\n'),
        (
            {"a": described("a"), "b": described("b", member("app"))},
            ("a", "b"),
            2,
            (
                'Group "b" cannot be deleted: it has 1 member (state Stable). Stop its consumers first; '
                "they are shown by: forebay group describe b\n"
                'Deleting group "a" has to be confirmed: at a terminal, or with --yes.\n'
            ),
        ),
    ],
    ids=["one that does not exist", "one that may not be seen", "the other one is not confirmed"],
)
def test_without_a_yes_nothing_is_deleted_and_a_single_group_has_the_exit_code_of_its_failure(
    monkeypatch: pytest.MonkeyPatch, groups: dict[str, Any], names: tuple[str, ...], code: int, talk: str
) -> None:
    answering(monkeypatch, admin := FakeAdmin(groups=groups))

    assert run("group", "delete", *names) == (code, "", talk)
    assert admin.deletions == []


@pytest.mark.parametrize(("other", "own"), [(("group", "ls"), ("group", "list")), (("group", "rm", "g"), ("group", "delete", "g"))])
def test_ls_and_rm_are_other_names_of_list_and_delete(
    monkeypatch: pytest.MonkeyPatch, other: tuple[str, ...], own: tuple[str, ...]
) -> None:
    answering(monkeypatch, FakeAdmin())

    assert run(*other) == run(*own)
    assert run(*other)[0] in {0, 4}


def test_members_alone_are_shown_with_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, FakeAdmin(groups={"g": described("g", member("app", ("t", 0))), "e": described("e")}))

    assert run("group", "describe", "g", "--members")[1].splitlines()[1].split() == ["app", "10.0.0.7", "-", "app-1", "t:0"]
    assert run("group", "describe", "e", "--members") == (0, "", 'Group "e" has no members.\n')
