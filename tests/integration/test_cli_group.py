"""`forebay group` and `forebay topic consume -g` beside a broker that serves."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.command_line import ANSWER_WITHIN_S, answered, environment, following, forebay, interrupted, soon
from tests.kit.serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(None) as broker:
        yield broker


def filled(served: Served, topic: str, *, records: int = 3, partitions: int = 1) -> None:
    answered(served.bootstrap, "topic", "create", topic, "-p", str(partitions))
    for partition in range(partitions):
        lines = "\n".join(f"{partition}.{number}" for number in range(records)).encode()
        answered(served.bootstrap, "topic", "produce", topic, "-p", str(partition), given=lines)


def committed(served: Served, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """As a group that was once there."""
    partitions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)])[group].result(ANSWER_WITHIN_S)


def offsets(served: Served, group: str) -> dict[tuple[str, int], int]:
    return {(one["topic"], one["partition"]): one["committed"] for one in answered(served.bootstrap, "group", "lag", group)["partitions"]}


def test_ctrl_c_commits_what_was_written_and_ends_well(served: Served) -> None:
    filled(served, "interrupted")
    process = following(served.bootstrap, "topic", "consume", "interrupted", "-g", "i")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"0.0\n", b"0.1\n", b"0.2\n"]

    code, talk = interrupted(process)

    assert (code, talk) == (0, '3 records of "interrupted", committed for group "i".\n')
    assert offsets(served, "i") == {("interrupted", 0): 3}
    assert answered(served.bootstrap, "group", "describe", "i")["members"] == []


def test_a_member_that_dies_has_its_records_written_again_and_none_is_lost(served: Served) -> None:
    filled(served, "killed", records=2_000)
    process = following(served.bootstrap, "topic", "consume", "killed", "-g", "k")
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(500)]
    process.kill()
    rest, _ = process.communicate(timeout=ANSWER_WITHIN_S)
    seen += rest.splitlines(keepends=True)

    code, again, _ = forebay(served.bootstrap, "topic", "consume", "killed", "-g", "k", "--exit", "-q")

    assert code == 0
    assert {*seen, *again.encode().splitlines(keepends=True)} >= {f"0.{number}\n".encode() for number in range(2_000)}
    assert offsets(served, "k") == {("killed", 0): 2_000}


def test_a_reader_that_goes_away_is_not_taken_to_have_read(served: Served) -> None:
    filled(served, "piped-group", records=50_000)
    process = following(served.bootstrap, "topic", "consume", "piped-group", "-g", "p", "-q")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    assert (process.wait(ANSWER_WITHIN_S), process.stderr.read()) == (0, b"")
    process.stderr.close()
    assert sum(offsets(served, "p").values()) < 50_000


def test_a_group_that_starts_at_the_end_sees_only_what_comes(served: Served) -> None:
    filled(served, "ended")
    process = following(served.bootstrap, "topic", "consume", "ended", "-g", "e", "-o", "end", "-n", "1", "-q")
    soon(lambda: [group["state"] for group in answered(served.bootstrap, "group", "list") if group["name"] == "e"] == ["Stable"])
    soon(lambda: process.poll() is not None or forebay(served.bootstrap, "topic", "produce", "ended", given=b"new")[0] != 0)

    assert process.communicate(timeout=ANSWER_WITHIN_S)[0] == b"new\n"


def test_lag_is_watched_in_blocks_until_ctrl_c_which_is_130(served: Served) -> None:
    filled(served, "watched")
    committed(served, "w", {("watched", 0): 1})
    process = following(served.bootstrap, "group", "lag", "w", "--watch", "--interval", "200ms", "-o", "json")
    assert process.stdout is not None
    found = []
    for _ in range(2):
        lines = [process.stdout.readline()]
        while lines[-1] != b"}\n":
            lines.append(process.stdout.readline())
        found.append(json.loads(b"".join(lines))["lag"])
        forebay(served.bootstrap, "topic", "produce", "watched", given=b"one\ntwo")
        soon(lambda: answered(served.bootstrap, "group", "lag", "w")["lag"] >= 4)

    assert found[0] == 2
    assert interrupted(process)[0] == 130


def test_at_a_terminal_watching_draws_over_what_was_there(served: Served) -> None:
    filled(served, "drawn")
    committed(served, "d", {("drawn", 0): 1})
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "forebay", "group", "lag", "d", "--watch", "--interval", "100ms", "-n", "2"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=environment(served.bootstrap))
    os.close(theirs)
    assert process.wait(ANSWER_WITHIN_S) == 0
    screen = os.read(ours, 65_536).decode()
    os.close(ours)

    assert screen.count("\x1b[H\x1b[2J") == 2
    assert screen.startswith("\x1b[H\x1b[2J20")


def test_a_look_that_fails_is_told_and_the_next_is_awaited(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        filled(broker, "cut")
        committed(broker, "c", {("cut", 0): 1})
        process = following(broker.bootstrap, "group", "lag", "c", "--watch", "--interval", "100ms")
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() != b""
        broker.kill9()
        assert (
            process.stderr.readline()
            == f"Cannot reach {broker.bootstrap} (connection refused). Set -b HOST:PORT or FOREBAY_BOOTSTRAP.\n".encode()
        )
        with serving(tmp_path, kafka_port=broker.kafka_port):
            looks = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=ANSWER_WITHIN_S)
            assert "cut" in looks.topics
            os.set_blocking(process.stdout.fileno(), False)
            process.stdout.read()
            soon(lambda: b"lag      2" in (process.stdout.read() or b""))
            assert interrupted(process)[0] == 130


def test_what_is_exported_can_be_taken_back_from_the_file(served: Served, tmp_path: Path) -> None:
    filled(served, "exported", partitions=2)
    committed(served, "x", {("exported", 0): 1, ("exported", 1): 2})
    kept = tmp_path / "offsets.csv"
    kept.write_text(forebay(served.bootstrap, "group", "reset-offsets", "x", "--all-topics", "--to-current", "--export")[1])

    forebay(served.bootstrap, "group", "reset-offsets", "x", "--topic", "exported", "--to-latest", "--execute")
    assert offsets(served, "x") == {("exported", 0): 3, ("exported", 1): 3}
    done = answered(served.bootstrap, "group", "reset-offsets", "x", "--from-file", str(kept), "--execute")

    assert (done["executed"], [(one["old"], one["new"]) for one in done["partitions"]]) == (True, [(3, 1), (3, 2)])
    assert offsets(served, "x") == {("exported", 0): 1, ("exported", 1): 2}


def test_a_dry_run_commits_nothing_and_makes_no_group(served: Served) -> None:
    filled(served, "dry")

    code, data, talk = forebay(served.bootstrap, "group", "reset-offsets", "dry-group", "--topic", "dry:0", "--to-latest")

    assert (code, data) == (0, "TOPIC  PARTITION  OLD  NEW\ndry            0  -      3\n")
    assert talk.splitlines()[0].startswith('Warning: Group "dry-group" does not exist yet.')
    assert "dry-group" not in [group["name"] for group in answered(served.bootstrap, "group", "list")]


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("group", "reset-offsets", "u", "--topic", "no-such", "--to-latest"), 'Topic "no-such" does not exist.'),
        (("group", "reset-offsets", "u", "--topic", "known:3", "--to-latest"), 'Topic "known" has no partition 3'),
        (("group", "reset-offsets", "no-group", "--all-topics", "--to-latest"), 'Group "no-group" does not exist.'),
        (("group", "describe", "no-group"), 'Group "no-group" does not exist.'),
        (("group", "lag", "no-group"), 'Group "no-group" does not exist.'),
        (("topic", "consume", "no-such", "-g", "u"), 'Topic "no-such" does not exist.'),
    ],
)
def test_what_does_not_exist_is_4(served: Served, arguments: tuple[str, ...], phrase: str) -> None:
    forebay(served.bootstrap, "topic", "create", "known")

    code, data, talk = forebay(served.bootstrap, *arguments)

    assert (code, data) == (4, "")
    assert phrase in talk


def test_a_group_says_nothing_for_too_long_is_124(served: Served) -> None:
    filled(served, "silent", records=1)

    code, data, talk = forebay(served.bootstrap, "topic", "consume", "silent", "-g", "s", "-n", "2", "--timeout", "6s")

    assert (code, data) == (124, "0.0\n")
    assert talk == 'No record of "silent" came within 6 s. Wait longer with --timeout, or leave it out.\n'
    assert offsets(served, "s") == {("silent", 0): 1}


def test_offsets_of_a_deleted_topic_are_not_counted(served: Served) -> None:
    filled(served, "doomed-topic")
    filled(served, "kept-topic")
    committed(served, "o", {("doomed-topic", 0): 1, ("kept-topic", 0): 1})
    forebay(served.bootstrap, "topic", "delete", "doomed-topic", "--yes")

    assert answered(served.bootstrap, "group", "lag", "o")["lag"] == 2
    assert [one["group"] for one in answered(served.bootstrap, "group", "lag") if one["group"] == "o"] == ["o"]


def test_a_group_that_reads_and_never_commits_is_not_said_to_have_read_everything(served: Served) -> None:
    filled(served, "uncommitted", records=1_000, partitions=2)
    consumer = Consumer(
        {"bootstrap.servers": served.bootstrap, "group.id": "never", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["uncommitted"])
    try:
        soon(lambda: consumer.poll(0.1) is not None)
        found = answered(served.bootstrap, "group", "lag", "never")
        _, table, _ = forebay(served.bootstrap, "group", "lag", "never")
        _, all_groups, _ = forebay(served.bootstrap, "group", "lag")
    finally:
        consumer.close()

    assert (found["lag"], found["lag_unknown"]) == (None, 2)
    assert [(one["committed"], one["end"], one["lag"]) for one in found["partitions"]] == [(None, 1_000, None)] * 2
    assert table.splitlines()[3] == "lag      -"
    assert [line.split()[2:5] for line in table.splitlines()[6:]] == [["-", "1000", "-"]] * 2
    assert [line.split() for line in all_groups.splitlines() if line.startswith("never")] == [["never", "Stable", "1", "2", "-", "2"]]


@pytest.mark.parametrize(("answer", "code", "said"), [("n", 1, "Nothing was deleted."), ("y", 0, 'Deleted group "asked".')])
def test_deleting_a_group_asks_at_a_terminal(served: Served, answer: str, code: int, said: str) -> None:
    forebay(served.bootstrap, "topic", "create", "asked-topic")
    committed(served, "asked", {("asked-topic", 0): 0})
    ours, theirs = pty.openpty()
    with open(ours, "wb", buffering=0) as keyboard:
        command = [sys.executable, "-m", "forebay", "group", "delete", "asked"]
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(served.bootstrap))
        os.close(theirs)
        keyboard.write(f"{answer}\n".encode())
        data, talk = process.communicate(timeout=ANSWER_WITHIN_S)

    assert (process.returncode, data) == (code, b"")
    assert talk.decode().startswith('Delete group "asked" and all committed offsets? [y/N]: ')
    assert talk.decode().endswith(f"{said}\n")


def test_names_of_topics_and_groups_are_completed(served: Served) -> None:
    forebay(served.bootstrap, "topic", "create", "complete-me")
    committed(served, "complete:group", {("complete-me", 0): 0})
    command = shutil.which("forebay", path=environment(served.bootstrap)["PATH"])
    assert command is not None

    def offered(line: str) -> list[str]:
        asking = {"_FOREBAY_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
        return subprocess.check_output([command], env=environment(served.bootstrap) | asking, text=True).split()

    assert offered("forebay topic describe compl") == ["complete-me"]
    assert offered("forebay group lag compl") == ["complete:group"]
    assert offered(f"forebay group reset-offsets -b {served.bootstrap} complete:group --topic compl") == ["complete-me"]
    assert offered("forebay topic consume complete-me -g compl") == ["complete:group"]
    assert offered("forebay topic describe -b 127.0.0.1:1 compl") == []


def test_a_replication_factor_that_is_not_heeded_is_told(served: Served) -> None:
    code, _, talk = forebay(served.bootstrap, "topic", "create", "replicated", "-r", "3")

    assert code == 0
    assert talk.splitlines()[1] == (
        "Replication factor 3 was accepted and ignored: durability comes from the object store (reported as 1)."
    )


def test_sigint_while_joining_is_no_error(served: Served) -> None:
    filled(served, "joining")
    process = following(served.bootstrap, "topic", "consume", "joining", "-g", "j")
    soon(lambda: any(group["name"] == "j" for group in answered(served.bootstrap, "group", "list")))
    process.send_signal(signal.SIGINT)

    data, talk = process.communicate(timeout=ANSWER_WITHIN_S)
    assert process.returncode == 0
    assert talk.decode().endswith('records of "joining", committed for group "j".\n')
    assert data in {b"", b"0.0\n0.1\n0.2\n"}


def test_offsets_are_deleted_by_topic_or_partition_and_what_could_not_be_is_named(served: Served) -> None:
    for topic, partitions in (("del-a", "2"), ("del-b", "1")):
        answered(served.bootstrap, "topic", "create", topic, "-p", partitions)
        for partition in range(int(partitions)):
            answered(served.bootstrap, "topic", "produce", topic, "-p", str(partition), given=b"1\n2\n")
    assert forebay(served.bootstrap, "topic", "consume", "del-a", "del-b", "-g", "del", "--exit")[0] == 0

    code, data, talk = forebay(
        served.bootstrap, "group", "delete-offsets", "del", "del-a:1", "del-b", "del-a:7", "nowhere", "--yes", "-o", "json"
    )
    again = forebay(served.bootstrap, "group", "delete-offsets", "del", "del-b", "--yes")

    found = json.loads(data)
    assert code == 1
    assert found["deleted"] == [{"topic": "del-a", "partition": 1, "offset": 2}, {"topic": "del-b", "partition": 0, "offset": 2}]
    assert [one["name"] for one in found["failed"]] == ["del-a/7", "nowhere"]
    assert 'Group "del" has committed nothing in del-a/7. Look at it: forebay group lag del' in talk.splitlines()
    committed = {
        (one["topic"], one["partition"]): one["committed"] for one in answered(served.bootstrap, "group", "lag", "del")["partitions"]
    }
    assert committed == {("del-a", 0): 2}
    assert again == (4, "", 'Group "del" has committed nothing in topic "del-b". Look at it: forebay group lag del\n')


def test_offsets_that_a_consumer_goes_on_from_are_kept(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "kept")
    answered(served.bootstrap, "topic", "produce", "kept", given=b"1\n")
    forebay(served.bootstrap, "topic", "consume", "kept", "-g", "keeper", "--exit")
    process = following(served.bootstrap, "topic", "consume", "kept", "-g", "keeper")
    try:
        soon(lambda: bool(answered(served.bootstrap, "group", "lag", "keeper")["state"] == "Stable"))
        code, data, talk = forebay(served.bootstrap, "group", "delete-offsets", "keeper", "kept", "--yes")
    finally:
        assert interrupted(process)[0] == 0

    assert (code, data) == (1, "")
    assert talk == (
        'The offset of group "keeper" in kept/0 was not deleted: a consumer reads there. Stop it first; '
        "it is shown by: forebay group describe keeper\n"
    )


def test_deleting_offsets_of_a_group_that_nobody_knows_or_without_being_sure_is_refused(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "sure")
    answered(served.bootstrap, "topic", "produce", "sure", given=b"1\n")
    forebay(served.bootstrap, "topic", "consume", "sure", "-g", "sure", "--exit")

    assert forebay(served.bootstrap, "group", "delete-offsets", "unsure", "sure", "--yes")[0] == 4
    assert forebay(served.bootstrap, "group", "delete-offsets", "sure", "sure:x")[0] == 2
    assert forebay(served.bootstrap, "group", "delete-offsets", "sure", "sure") == (
        2,
        "",
        'Deleting offsets of group "sure" has to be confirmed: at a terminal, or with --yes.\n',
    )
