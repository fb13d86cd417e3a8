"""`forebay topic` and `forebay cluster` beside a broker that serves."""

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.command_line import ANSWER_WITHIN_S, answered, environment, following, forebay, interrupted
from tests.kit.serving import HOST, Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(None) as broker:
        yield broker


def test_what_is_produced_comes_back_with_its_bytes_whole(served: Served, tmp_path: Path) -> None:
    lines = [b"plain", b"", "ünïcode".encode(), bytes(range(11, 256)), b"trailing\r"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    answered(served.bootstrap, "topic", "create", "bytes")

    stored = answered(served.bootstrap, "topic", "produce", "bytes", "--file", str(tmp_path / "lines"))
    code, data, _ = forebay(served.bootstrap, "topic", "consume", "bytes", "-n", "5", "-f", r"%v{hex}\n")

    assert stored == {"topic": "bytes", "records": 5, "partitions": [{"partition": 0, "records": 5}]}
    assert code == 0
    assert data.splitlines() == [line.hex() for line in lines]


def test_a_key_goes_where_java_clients_put_it_and_order_is_kept(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "keyed", "-p", "7")
    values = [str(number) for number in range(2_000)]

    stored = answered(served.bootstrap, "topic", "produce", "keyed", "-k", "user-7", given="\n".join(values).encode())
    code, data, _ = forebay(served.bootstrap, "topic", "consume", "keyed", "--exit")

    assert [one["partition"] for one in stored["partitions"]] == [murmur2(b"user-7") % 7]
    assert stored["records"] == 2_000
    assert code == 0
    assert data.splitlines() == values


def murmur2(data: bytes) -> int:
    """As org.apache.kafka.common.utils.Utils has it, made positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_a_null_value_and_a_header_of_another_client_are_shown(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "nulls")
    producer = Producer({"bootstrap.servers": served.bootstrap})
    producer.produce("nulls", value=None, key=b"\xff", headers=[("a", None), ("b", b"\xfe")])
    assert producer.flush(ANSWER_WITHIN_S) == 0

    _, data, _ = forebay(served.bootstrap, "topic", "consume", "nulls", "-n", "1", "-f", "json")

    found = json.loads(data)
    assert (found["key"], found["value"]) == ({"base64": "/w=="}, None)
    assert found["headers"] == [{"key": "a", "value": None}, {"key": "b", "value": {"base64": "/g=="}}]


def test_a_topic_is_described_whole_as_json(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "whole", "-p", "3", "-c", "retention.ms=1000")
    forebay(served.bootstrap, "topic", "produce", "whole", "-p", "2", given=b"a\nb")

    found = answered(served.bootstrap, "topic", "describe", "whole")

    assert list(found) == ["name", "id", "is_internal", "partitions", "configs"]
    bounds = [(one["partition"], one["leader"], one["start"], one["end"]) for one in found["partitions"]]
    assert bounds == [(0, 1, 0, 0), (1, 1, 0, 0), (2, 1, 0, 2)]
    sizes = [one["size_bytes"] for one in found["partitions"]]
    assert sizes[:2] == [0, 0]
    assert 60 < sizes[2] < 200
    assert found["configs"]["retention.ms"] == {"value": "1000", "source": "DYNAMIC_TOPIC_CONFIG"}
    assert found["configs"]["cleanup.policy"] == {"value": "delete", "source": "DEFAULT_CONFIG"}


def test_following_shows_records_as_they_come_and_ctrl_c_ends_it_well(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "live")
    process = following(served.bootstrap, "topic", "consume", "live")
    assert process.stdout is not None
    for line in (b"one\n", b"two\n"):
        assert forebay(served.bootstrap, "topic", "produce", "live", given=line)[0] == 0
        assert process.stdout.readline() == line

    assert interrupted(process) == (0, '2 records of "live".\n')


def test_ctrl_c_before_all_wanted_records_came_is_an_interruption(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "short")
    forebay(served.bootstrap, "topic", "produce", "short", given=b"one")
    process = following(served.bootstrap, "topic", "consume", "short", "-n", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"

    assert interrupted(process) == (130, '1 record of "short".\n')


def test_a_reader_that_goes_away_ends_consuming_without_a_word(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "piped")
    forebay(served.bootstrap, "topic", "produce", "piped", given=b"x" * 99 + b"\n" + b"\n".join([b"y" * 99] * 5_000))
    process = following(served.bootstrap, "topic", "consume", "piped", "-q")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    assert process.wait(ANSWER_WITHIN_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_several_topics_are_read_at_once_and_a_pattern_finds_them(served: Served) -> None:
    for name in ("many-a", "many-b", "many-c", "other"):
        answered(served.bootstrap, "topic", "create", name)
        answered(served.bootstrap, "topic", "produce", name, given=name.encode())

    named = forebay(served.bootstrap, "topic", "consume", "many-a", "other", "many-a", "--exit", "-f", r"%t=%v\n")
    found = forebay(served.bootstrap, "topic", "consume", "--regex", "^many-[bc]$", "oth.r", "--exit")
    none = forebay(served.bootstrap, "topic", "consume", "--regex", "^any-")

    assert (named[0], sorted(named[1].splitlines()), named[2]) == (0, ["many-a=many-a", "other=other"], "2 records of 2 topics.\n")
    assert (found[0], sorted(found[1].splitlines())) == (0, ["many-b", "many-c", "other"])
    assert none[0] == 4
    assert none[2].endswith(" topics is like that. List them: forebay topic list\n")


def test_members_of_a_group_read_several_topics_and_commit_each(served: Served) -> None:
    for name in ("left", "right"):
        answered(served.bootstrap, "topic", "create", name)
        answered(served.bootstrap, "topic", "produce", name, given=b"1\n2")

    code, data, talk = forebay(served.bootstrap, "topic", "consume", "left", "right", "-g", "both", "--exit")

    assert (code, sorted(data.split()), talk) == (0, ["1", "1", "2", "2"], '4 records of 2 topics, committed for group "both".\n')
    lag = answered(served.bootstrap, "group", "lag", "both")
    assert [(one["topic"], one["committed"]) for one in lag["partitions"]] == [("left", 2), ("right", 2)]


def test_reading_ends_before_an_offset_a_time_or_the_end(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "ending", "-p", "2")
    for partition in ("0", "1"):
        answered(served.bootstrap, "topic", "produce", "ending", "-p", partition, given=b"a\nb\nc\nd")
    times = forebay(served.bootstrap, "topic", "consume", "ending", "-p", "0", "--exit", "-f", r"%d\n")[1].split()

    def between(*arguments: str) -> tuple[int, list[str]]:
        code, data, _ = forebay(served.bootstrap, "topic", "consume", "ending", *arguments)
        return code, sorted(data.split())

    assert between("--until", "2") == (0, ["a", "a", "b", "b"])
    assert between("--from", "1", "--until", "3", "-p", "1") == (0, ["b", "c"])
    assert between("--until", "end") == (0, sorted("abcd" * 2))
    assert between("--until", "-3") == (0, ["a", "a"])
    assert between("--until", f"@{times[0]}", "-p", "0") == (0, [])
    assert between("--until", "@2100-01-01") == (0, sorted("abcd" * 2))
    assert between("-o", "end", "--until", "end") == (0, [])


def test_an_offset_to_end_before_may_be_still_to_come(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "coming")
    process = following(served.bootstrap, "topic", "consume", "coming", "--until", "2")
    for line in (b"1\n", b"2\n3\n"):
        answered(served.bootstrap, "topic", "produce", "coming", given=line)

    data, talk = process.communicate(timeout=ANSWER_WITHIN_S)

    assert (process.returncode, data, talk) == (0, b"1\n2\n", b'2 records of "coming".\n')


def test_altering_says_what_was_set(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "altered", "-c", "retention.ms=1000")

    said = answered(served.bootstrap, "topic", "alter", "altered", "-c", "cleanup.policy=compact", "--unset", "retention.ms")

    assert said == {"name": "altered", "set": {"cleanup.policy": "compact"}, "unset": ["retention.ms"]}
    configs = answered(served.bootstrap, "topic", "describe", "altered")["configs"]
    assert configs["cleanup.policy"] == {"value": "compact", "source": "DYNAMIC_TOPIC_CONFIG"}
    assert configs["retention.ms"]["source"] == "DEFAULT_CONFIG"


def test_of_several_topics_those_that_can_be_are_created_and_deleted_and_the_others_are_named(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "there")

    created = forebay(served.bootstrap, "topic", "create", "new-a", "there", "new-b", "-o", "json")
    deleted = forebay(served.bootstrap, "topic", "delete", "new-a", "gone", "new-b", "--yes", "-o", "json")

    exists = 'Topic "there" exists already. Look at it: forebay topic describe there'
    assert created[0] == deleted[0] == 1
    assert [one["name"] for one in json.loads(created[1])["created"]] == ["new-a", "new-b"]
    assert json.loads(created[1])["failed"] == [{"name": "there", "error": exists}]
    assert created[2].splitlines() == [
        'Created topic "new-a" with 1 partition.',
        exists,
        'Created topic "new-b" with 1 partition.',
        "Created 2 of 3 topics.",
    ]
    assert [one["name"] for one in json.loads(deleted[1])["deleted"]] == ["new-a", "new-b"]
    assert deleted[2].startswith('Topic "gone" does not exist.')
    assert deleted[2].endswith("Deleted 2 of 3 topics.\n")


def test_partitions_are_added_by_so_many_or_up_to_so_many(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "grow", "-p", "2")

    more = answered(served.bootstrap, "topic", "add-partitions", "grow", "--num", "3")
    total = answered(served.bootstrap, "topic", "add-partitions", "grow", "-p", "7")
    code, data, talk = forebay(served.bootstrap, "topic", "add-partitions", "grow", "gorw", "-p", "7", "-o", "json")
    fewer = forebay(served.bootstrap, "topic", "add-partitions", "grow", "-p", "6")
    many = forebay(served.bootstrap, "topic", "add-partitions", "grow", "-n", "10000")

    assert (more, total) == ({"name": "grow", "before": 2, "partitions": 5}, {"name": "grow", "before": 5, "partitions": 7})
    assert len(answered(served.bootstrap, "topic", "describe", "grow")["partitions"]) == 7
    assert (code, json.loads(data)["grown"], len(json.loads(data)["failed"])) == (1, [], 2)
    assert 'Topic "grow" has 7 partitions already.' in talk.splitlines()
    assert (fewer[0], fewer[2]) == (2, 'Topic "grow" has 7 partitions already, and none can be taken away.\n')
    assert (many[0], many[2]) == (2, 'Topic "grow" would have 10,007 partitions: brokers take 10,000 at most, and it has 7.\n')


def test_a_line_that_the_topic_does_not_take_is_named(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "small", "-c", "max.message.bytes=1000")

    code, _, talk = forebay(served.bootstrap, "topic", "produce", "small", given=b"x" * 5_000)

    assert code == 1
    assert talk.splitlines()[0] == '0 records stored in "small".'
    assert talk.splitlines()[1].startswith("Line 1 was not stored: ")


@pytest.mark.parametrize("output", [(), ("-o", "json")])
def test_of_many_lines_the_first_that_is_not_stored_is_named_and_those_that_are_stored_are_counted(
    served: Served, output: tuple[str, ...]
) -> None:
    topic = f"partly{len(output)}"
    answered(served.bootstrap, "topic", "create", topic, "-p", "2", "-c", "max.message.bytes=3000")
    lines = [f"{number % 2}:{number}{'x' * 5_000 if number == 1_501 else ''}" for number in range(3_000)]

    code, data, talk = forebay(served.bootstrap, "topic", "produce", topic, "-f", "%p:%v", *output, given="\n".join(lines).encode())

    stored = forebay(served.bootstrap, "topic", "consume", topic, "--exit", "-f", r"%p:%v\n", "-q")[1].splitlines()
    missing = [number for number, line in enumerate(lines, start=1) if line not in set(stored)]
    said = talk.splitlines()
    assert code == 1
    assert said[0] == f'{len(stored):,} record{"s" * (len(stored) != 1)} stored in "{topic}".'
    assert 1_502 in missing
    assert said[1].startswith(f"Line {missing[0]} was not stored")
    if output:
        found = json.loads(data)
        assert found["records"] == len(stored) == sum(partition["records"] for partition in found["partitions"])


def test_lines_together_are_the_records_that_single_ones_are(served: Served, tmp_path: Path) -> None:
    answered(served.bootstrap, "topic", "create", "mixed", "-p", "3")
    lines = [b"", b"\xff\x00", b"a" * 20_000, *(b"%d" % number for number in range(20_000)), b"", b"last"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    options = ((), ("-k", "key"), ("-Z",), ("-H", "a=b"))

    for option in options:
        answered(served.bootstrap, "topic", "produce", "mixed", "-p", "1", *option, "--file", str(tmp_path / "lines"))

    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "mixed"})
    consumer.assign([TopicPartition("mixed", 1, 0)])
    for option in options:
        records = [consumer.poll(ANSWER_WITHIN_S) for _ in lines]
        found = [(record.key(), record.value(), record.headers()) for record in records if record is not None]
        key, headers = (b"key" if "-k" in option else None), ([("a", b"b")] if "-H" in option else None)
        assert found == [(key, line or (None if "-Z" in option else b""), headers) for line in lines]
    consumer.close()


def test_lines_that_name_their_partitions_are_in_these(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "places", "-p", "3")
    lines = [f"{number % 3}:{number}" for number in range(300)]

    found = answered(served.bootstrap, "topic", "produce", "places", "-f", "%p:%v", given="\n".join(lines).encode())
    stored = forebay(served.bootstrap, "topic", "consume", "places", "--exit", "-f", r"%p:%v\n", "-q")[1].splitlines()

    assert [partition["records"] for partition in found["partitions"]] == [100, 100, 100]
    assert sorted(stored) == sorted(lines)


def test_keys_headers_and_nulls_come_from_lines(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "lines")
    answered(served.bootstrap, "topic", "produce", "lines", "-K:", "-Z", "-H", "of=all", given=b"a:1:2\nb:\n")
    answered(served.bootstrap, "topic", "produce", "lines", "-f", r"%d %h %k{hex} %v\n", given=b"77 x=y 00ff v w\n")

    _, data, _ = forebay(served.bootstrap, "topic", "consume", "lines", "--exit", "-f", r"%k{hex}|%v|%V|%h|%d\n")
    keyed = forebay(served.bootstrap, "topic", "consume", "lines", "-n", "1", "-K", " = ")[1]

    rows = [row.split("|") for row in data.splitlines()]
    assert [row[:4] for row in rows] == [["61", "1:2", "3", "of=all"], ["62", "", "-1", "of=all"], ["00ff", "v w", "3", "x=y"]]
    assert rows[2][4] == "77"
    assert keyed == "a = 1:2\n"


def test_a_line_that_cannot_be_read_is_named_and_those_before_it_are_stored(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "unkeyed")

    code, data, talk = forebay(served.bootstrap, "topic", "produce", "unkeyed", "-K:", "-o", "json", given=b"a:1\nb:2\nc\nd:4\n")

    assert (code, json.loads(data)["records"]) == (2, 2)
    assert talk == '2 records stored in "unkeyed".\nLine 3 has no ":" behind %k. It was not stored, nor was any behind it.\n'


LINES_THAT_TAKE_A_WHILE = 1_000_000
"""More than a second of any machine: what is done within half of one is not talked about. A third of them took less."""


@pytest.mark.slow
def test_a_terminal_shows_how_far_a_file_is_and_a_pipe_hears_nothing_of_it(served: Served, tmp_path: Path) -> None:
    answered(served.bootstrap, "topic", "create", "long")
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n")
    with open(tmp_path / "lines", "ab") as file:
        file.writelines([b"y" * 99 + b"\n"] * LINES_THAT_TAKE_A_WHILE)
    command = [sys.executable, "-m", "forebay", "topic"]
    produce = [*command, "produce", "long", "--file", str(tmp_path / "lines")]

    shown = on_a_terminal(served.bootstrap, "topic", "produce", "long", "--file", str(tmp_path / "lines"), stderr=True)
    piped = subprocess.run(produce, capture_output=True, env=environment(served.bootstrap), timeout=ANSWER_WITHIN_S, check=True)
    consumed = subprocess.run(
        [*command, "consume", "long", "--until", "end"],
        capture_output=True,
        env=environment(served.bootstrap),
        timeout=ANSWER_WITHIN_S,
        check=True,
    )

    assert b"%  " in shown
    assert shown.endswith(b'\r\x1b[K1,000,001 records stored in "long".\n')
    assert piped.stderr == b'1,000,001 records stored in "long".\n'
    assert consumed.stderr == b'2,000,002 records of "long".\n'
    assert len(consumed.stdout) == 2 * 100 * 1_000_001


def test_a_broker_that_dies_while_lines_come_leaves_no_doubt_about_which_were_stored(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        answered(broker.bootstrap, "topic", "create", "cut")
        command = [sys.executable, "-m", "forebay", "topic", "produce", "cut", "-o", "json", "--timeout", "3s"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(broker.bootstrap)
        )
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert forebay(broker.bootstrap, "topic", "consume", "cut", "-n", "1")[1] == "one\n"
        broker.kill9()
        data, talk = process.communicate(b"two\n", timeout=ANSWER_WITHIN_S)

    assert process.returncode == 124
    assert json.loads(data)["records"] == 1
    assert talk.decode().splitlines() == [
        '1 record stored in "cut".',
        "Line 2 may or may not be stored: no answer within 3 s.",
    ]


def trimmed(served: Served, topic: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = answered(served.bootstrap, "topic", "trim", topic, *arguments, "--yes")
    return found


def extents(served: Served, topic: str) -> list[tuple[int, int]]:
    return [(one["start"], one["end"]) for one in answered(served.bootstrap, "topic", "describe", topic)["partitions"]]


def test_trimming_reaches_all_partitions_or_one_and_never_what_is_newer(served: Served) -> None:
    forebay(served.bootstrap, "topic", "create", "trimmed", "-p", "2")
    lines = b"".join(b"%d\t%d\t%d\n" % (number % 2, 1_000 + number, number) for number in range(10))
    assert forebay(served.bootstrap, "topic", "produce", "trimmed", "-q", "-f", "%p\\t%d\\t%v", given=lines)[0] == 0

    dry = answered(served.bootstrap, "topic", "trim", "trimmed", "--to", "end", "--dry-run")
    assert (dry["executed"], [one["records"] for one in dry["partitions"]]) == (False, [5, 5])
    assert extents(served, "trimmed") == [(0, 5), (0, 5)]

    assert [one["to"] for one in trimmed(served, "trimmed", "--to", "1")["partitions"]] == [1, 1]
    assert [one["to"] for one in trimmed(served, "trimmed", "--to", "@1005")["partitions"]] == [3, 2]
    assert extents(served, "trimmed") == [(3, 5), (2, 5)]
    assert trimmed(served, "trimmed", "--to", "1") == {"topic": "trimmed", "executed": True, "partitions": [], "failed": []}
    assert trimmed(served, "trimmed", "--to", "-1", "-p", "1")["partitions"] == [{"partition": 1, "start": 2, "to": 4, "records": 2}]
    assert extents(served, "trimmed") == [(3, 5), (4, 5)]
    trimmed(served, "trimmed", "--to", "@2000")
    assert extents(served, "trimmed") == [(5, 5), (5, 5)]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--to", "7"), 4, "Offset 7 is not in kept/0, which starts at 0 and ends before 1. Choose one partition with -p."),
        (("--to", "1", "-p", "2"), 4, 'Topic "kept" has no partition 2: it has partitions 0 to 1.'),
        (("--to", "start"), 2, "is no place to end"),
        (("--to", "end"), 2, 'Deleting records of topic "kept" has to be confirmed'),
        ((), 2, "Missing option '--to'"),
    ],
)
def test_trimming_that_cannot_be_meant_deletes_nothing(served: Served, arguments: tuple[str, ...], code: int, said: str) -> None:
    forebay(served.bootstrap, "topic", "create", "kept", "-p", "2", "-q")
    if extents(served, "kept") == [(0, 0), (0, 0)]:
        forebay(served.bootstrap, "topic", "produce", "kept", "-p", "0", "-q", given=b"a\n")

    ended, _, talk = forebay(served.bootstrap, "topic", "trim", "kept", *arguments, *(("--yes",) if code == 4 else ()))

    assert (ended, extents(served, "kept")) == (code, [(0, 1), (0, 0)])
    assert said in " ".join(talk.split())


def test_a_topic_that_keeps_the_last_of_each_key_is_not_trimmed(served: Served) -> None:
    forebay(served.bootstrap, "topic", "create", "last", "-c", "cleanup.policy=compact", "-q")
    forebay(served.bootstrap, "topic", "produce", "last", "-K:", "-q", given=b"a:1\n")

    code, data, talk = forebay(served.bootstrap, "topic", "trim", "last", "--to", "end", "--yes", "-o", "json")

    assert code == 5
    assert "cleanup.policy does not name delete" in talk
    assert json.loads(data)["failed"][0]["name"] == "last/0"
    assert extents(served, "last") == [(0, 1)]


@pytest.mark.parametrize(("answer", "code", "said"), [("n", 1, "Nothing was deleted."), ("y", 0, 'Deleted topic "doomed".')])
def test_deleting_asks_at_a_terminal(served: Served, answer: str, code: int, said: str) -> None:
    forebay(served.bootstrap, "topic", "create", "doomed")
    ours, theirs = pty.openpty()
    with open(ours, "wb", buffering=0) as keyboard:
        command = [sys.executable, "-m", "forebay", "topic", "delete", "doomed"]
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(served.bootstrap))
        os.close(theirs)
        keyboard.write(f"{answer}\n".encode())
        data, talk = process.communicate(timeout=ANSWER_WITHIN_S)

    assert (process.returncode, data) == (code, b"")
    assert talk.decode().startswith('Delete topic "doomed" with 1 partition and 0 records? [y/N]: ')
    assert talk.decode().endswith(f"{said}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "describe", "ordres"),
        ("topic", "alter", "ordres", "-c", "retention.ms=1"),
        ("topic", "delete", "ordres", "--yes"),
        ("topic", "trim", "ordres", "--to", "end", "--yes"),
        ("topic", "produce", "ordres"),
        ("topic", "consume", "ordres"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_no_command_makes_a_topic_by_asking_for_it(served: Served, arguments: tuple[str, ...]) -> None:
    forebay(served.bootstrap, "topic", "create", "orders")

    code, data, talk = forebay(served.bootstrap, *arguments, given=b"record")

    assert (code, data) == (4, "")
    assert talk == 'Topic "ordres" does not exist. Nearest: "orders". Create it: forebay topic create ordres\n'
    assert "ordres" not in [topic["name"] for topic in answered(served.bootstrap, "topic", "list")]


def test_an_address_that_is_advertised_and_cannot_be_reached_is_the_cause_that_is_named(tmp_path: Path) -> None:
    with serving(tmp_path, settings={"kafka.advertised_listeners": "PLAINTEXT://no-such-host.invalid:9092"}) as broker:
        created = forebay(broker.bootstrap, "topic", "create", "orders", "--timeout", "2s")
        health = forebay(broker.bootstrap, "cluster", "health")

    assert created[0] == 3
    assert "but it advertises no-such-host.invalid:9092, which cannot be reached from here (name does not resolve)" in created[2]
    assert health[0] == 6
    assert "broker 1 at no-such-host.invalid:9092 does not answer (name does not resolve)" in health[1]


def test_waiting_for_health_ends_when_the_broker_comes(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    process = following(f"{HOST}:{port}", "cluster", "health", "--exit-when-healthy", "-o", "json")
    assert process.stderr is not None
    assert b"connection refused" in process.stderr.readline()

    with serving(tmp_path, kafka_port=port):
        data, _ = process.communicate(timeout=ANSWER_WITHIN_S)

    assert process.returncode == 0
    assert json.loads(data)["healthy"] is True


def test_waiting_for_health_has_an_end() -> None:
    code, data, talk = forebay(f"{HOST}:1", "cluster", "health", "--exit-when-healthy", "--timeout", "1s")

    assert (code, data) == (124, "")
    assert talk.splitlines()[-1].startswith("Not healthy within 1 s: Cannot reach 127.0.0.1:1 (connection refused).")


def test_watching_tells_when_the_broker_goes_and_ctrl_c_ends_it_well(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        process = following(broker.bootstrap, "cluster", "health", "--watch")
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"healthy     yes\n"
        broker.kill9()

        assert b"connection refused" in process.stderr.readline()
        assert interrupted(process)[0] == 0


def test_help_does_not_wait_for_the_client_library() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, forebay.cli; print('confluent_kafka' in sys.modules, 'pydantic' in sys.modules)"],
        capture_output=True,
        check=True,
    )

    assert loaded.stdout.split() == [b"False", b"False"]


def on_a_terminal(bootstrap: str, *arguments: str, stderr: bool = False, columns: int = 0) -> bytes:
    """What a terminal behind stdout gets, or behind stderr."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    command = [sys.executable, "-m", "forebay", *arguments]
    out, err = (subprocess.DEVNULL, theirs) if stderr else (theirs, subprocess.DEVNULL)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(bootstrap)) as process:
        os.close(theirs)
        seen = b""
        # A terminal whose programs have ended says EIO, not the end.
        with contextlib.suppress(OSError):
            while read := os.read(ours, 65_536):
                seen += read
        os.close(ours)
        assert process.wait(ANSWER_WITHIN_S) == 0
    return seen.replace(b"\r\n", b"\n")


def test_a_terminal_does_not_obey_the_values_of_a_topic(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "hostile")
    answered(served.bootstrap, "topic", "produce", "hostile", given=b"\x1b]0;owned\x07 \xff\n")

    shown = on_a_terminal(served.bootstrap, "topic", "consume", "hostile", "--exit")
    asked_for = on_a_terminal(served.bootstrap, "topic", "consume", "hostile", "--exit", "-f", "raw")

    assert shown == b"\\x1b]0;owned\\x07 \\xff\n"
    assert asked_for == b"\x1b]0;owned\x07 \xff"


def test_a_long_name_is_cut_on_a_terminal_and_nowhere_else(served: Served) -> None:
    name = f"long-{'x' * 200}"
    answered(served.bootstrap, "topic", "create", name)

    shown = on_a_terminal(served.bootstrap, "topic", "list", columns=80).decode().splitlines()
    piped = forebay(served.bootstrap, "topic", "list")[1]

    assert max(map(len, shown)) == 80
    assert any(line.startswith("long-xxx") and "…  " in line for line in shown)
    assert name in piped
    assert name in [topic["name"] for topic in answered(served.bootstrap, "topic", "list")]


def test_a_full_disk_ends_with_one_line(served: Served) -> None:
    answered(served.bootstrap, "topic", "create", "full-disk")
    answered(served.bootstrap, "topic", "produce", "full-disk", given=b"x" * 100_000)
    command = [sys.executable, "-m", "forebay", "topic", "consume", "full-disk", "-g", "full-disk", "--exit"]

    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment(served.bootstrap), timeout=ANSWER_WITHIN_S, check=False
        )

    assert (ended.returncode, ended.stderr) == (1, b"Reading or writing: no space left on device.\n")
    assert answered(served.bootstrap, "group", "lag", "full-disk")["partitions"] == []


def test_what_follows_a_topic_says_that_its_broker_is_gone_and_ends_well_by_ctrl_c() -> None:
    with serving(None) as broker:
        answered(broker.bootstrap, "topic", "create", "left")
        answered(broker.bootstrap, "topic", "produce", "left", given=b"1\n")
        process = following(broker.bootstrap, "topic", "consume", "left")
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\n"
    assert process.stderr.readline() == b"No broker can be reached: trying again.\n"

    assert interrupted(process) == (0, '1 record of "left".\n')


def test_silence_of_a_broker_that_is_gone_is_not_silence_of_the_topic() -> None:
    with serving(None) as broker:
        answered(broker.bootstrap, "topic", "create", "left")
        answered(broker.bootstrap, "topic", "produce", "left", given=b"1\n")
        process = following(broker.bootstrap, "topic", "consume", "left", "-q", "--timeout", "5s")
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"

    _, talk = process.communicate(timeout=ANSWER_WITHIN_S)

    assert (process.returncode, talk.decode()) == (
        3,
        f"Cannot reach {broker.bootstrap} (connection refused). Set -b HOST:PORT or FOREBAY_BOOTSTRAP.\n",
    )
