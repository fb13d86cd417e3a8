import random
import zlib
from types import SimpleNamespace

import msgspec
import pytest

from broker.groups.state import NAME_CHARS_MAX
from runtime.clock import SystemClock
from storage.catalog.groups import MEMBERS_PACKED_BYTES_MAX, GroupRecord, MemberRecord, decode_group, encode_group, topic_names
from storage.errors import Corrupt, IncompatibleFormat
from storage.limits import METADATA_VALUE_BYTES_MAX
from storage.metadata import keys
from storage.metadata.keys import GroupKeys, group_of, groups
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put, Record
from storage.vocabulary import TopicId


def record(member_count: int, assignment: bytes = b"\x00\xff") -> GroupRecord:
    members = tuple(
        MemberRecord(f"m{number}", None, "client", "/h", 10_000, 60_000, (("range", b"topics " * 20),), assignment)
        for number in range(member_count)
    )
    return GroupRecord(
        group="g",
        owner=7,
        state="Stable",
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m0",
        topics=("t",),
        members=members,
    )


def read(value: bytes) -> GroupRecord:
    return decode_group(Record("llog/groups/g", value, 1))


@pytest.mark.parametrize("member_count", [0, 1, 200, 2_000])
def test_a_group_comes_back_as_it_was_however_many_members_it_has(member_count: int) -> None:
    value = encode_group(record(member_count))

    assert read(value) == record(member_count)
    assert len(value) <= METADATA_VALUE_BYTES_MAX


def test_a_group_that_does_not_fit_is_kept_without_its_members() -> None:
    noise = random.Random(1).randbytes(100_000)
    found = read(encode_group(record(2, assignment=noise)))

    assert (found.members, found.leader, found.generation, found.topics) == ((), None, 3, ("t",))


def test_members_that_are_very_large_are_not_even_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[int] = []

    def compress(data: bytes, level: int) -> bytes:
        compressed.append(len(data))
        return zlib.compress(data, level)

    monkeypatch.setattr("storage.catalog.groups.zlib", SimpleNamespace(compress=compress))
    found = read(encode_group(record(2, assignment=bytes(MEMBERS_PACKED_BYTES_MAX))))

    assert (found.members, compressed) == ((), [])


def test_a_group_fits_with_the_longest_names_that_there_may_be() -> None:
    longest = "\x01" * NAME_CHARS_MAX
    noise = random.Random(1).randbytes(100_000)
    group = msgspec.structs.replace(
        record(2, assignment=noise),
        group="\x01" * 1_024,
        protocol_type=longest,
        protocol=longest,
        topics=tuple(f"{number:036}" for number in range(256)),
    )

    assert len(encode_group(group)) <= METADATA_VALUE_BYTES_MAX


async def test_a_topic_is_gone_if_its_record_says_so_and_a_name_that_cannot_be_read_is_left_out() -> None:
    store = MemoryMetadataStore(clock=SystemClock())
    named, broken, gone, absent = (TopicId(f"topic-{name}") for name in ("named", "broken", "gone", "absent"))
    await store.write([Put(keys.topic_id(named), b'{"fmt":1,"name":"t"}', None)])
    await store.write([Put(keys.topic_id(broken), b"nonsense", None)])
    await store.write([Put(keys.topic_id(gone), b'{"fmt":1,"name":"t","deleted_logs":3}', None)])

    assert await topic_names(store, [named, broken, gone, absent]) == {named: "t", gone: None}
    await store.close()


def test_members_that_cannot_be_read_are_no_group() -> None:
    for packed in (b"no zlib", b""):
        broken = msgspec.json.encode(msgspec.structs.replace(record(0), members_packed=packed or b"\x78\x9c"))
        with pytest.raises(Corrupt):
            read(broken)


def test_a_newer_format_is_not_read() -> None:
    with pytest.raises(IncompatibleFormat):
        read(msgspec.json.encode(msgspec.structs.replace(record(0), fmt=2)))


@pytest.mark.parametrize("name", ["", "g", "a/b", "~", "%", "%25", "ü 日本", "a\x00b", ".", "llog"])
def test_any_name_is_one_key_among_those_of_its_slot(name: str) -> None:
    path = GroupKeys(name, 3).group.path
    start, end = groups(3)

    assert group_of(path) == name
    assert path.count("/") == 2
    assert start.path < path < end
    assert start.partition_key == GroupKeys(name, 3).partition_key
