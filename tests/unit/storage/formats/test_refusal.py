"""What a newer release put into a record of ours makes every decoder refuse it, and nothing is written over it (ADR 17)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from storage.catalog.brokers import decode_broker
from storage.catalog.collections import decode_collections
from storage.catalog.groups import decode_claim, decode_group, decode_head, decode_offset, decode_topics
from storage.catalog.identity import decode_cluster, decode_marker
from storage.catalog.producer_ids import decode_next_block
from storage.catalog.topic import decode_topic, decode_topic_id
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats import early_page, levels, wal
from storage.formats.manifest import decode_chunk, decode_manifest, decode_page
from storage.log.batch import Appended
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Put, Record
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, rig

Decode = Callable[[Record], object]


def _by_path(decode: Callable[..., object]) -> Decode:
    return lambda record: decode(record.value, path=record.path)


ENTRY = [0, 9, "01JGFJJZ005591T038X855YAFS", [[126, 88]], 1, 1]
STATE = [0, [[0, 1, 0, 5]], None]
MEMBER = ["m", None, "c", "h", 1, 1, [["range", "AA=="]], "AA=="]
GROUP = {"fmt": 1, "group": "g", "owner": 1, "state": "Stable", "protocol_type": None, "generation": 1, "protocol": None, "leader": None}
MANIFEST = {
    "fmt": 1,
    "sequence_counter": 10,
    "segment": [0, 1, "01JGFJJZ005591T038X855YAFS", 10, 1, 1],
    "pending": [ENTRY],
    "writers": {"2": [18, 1]},
    "producers": {"7": STATE},
}
EARLY_ENTRY = [0, 9, "01JGFJJZ005591T038X855YAFS", {"start": 64, "spans": [[126, 88]]}, 1, 1]
MERGING = {**MANIFEST, "fmt": 2, "segment": [2, 3, "01JGFJJZ005591T038X855YAFS", 10, 1, 1], "rewritten": MANIFEST["segment"]}
BROKER = {"fmt": 1, "broker_id": 1, "listeners": [["P", "h", 1]], "rack": None, "version": "0", "started_at_ms": 1, "session_id": 1}
RECORDS: dict[str, tuple[Decode, dict[str, Any]]] = {
    "manifest": (_by_path(decode_manifest), MANIFEST),
    "manifest with a merge": (_by_path(decode_manifest), MERGING),
    "manifest with an early entry": (_by_path(decode_manifest), {**MANIFEST, "fmt": 4, "pending": [EARLY_ENTRY]}),
    "index chunk": (_by_path(decode_chunk), {"fmt": 1, "entries": [ENTRY]}),
    "index chunk with an early entry": (_by_path(decode_chunk), {"fmt": 4, "entries": [EARLY_ENTRY]}),
    "page of producers": (_by_path(decode_page), {"fmt": 1, "producers": {"7": STATE}}),
    "topic": (
        decode_topic,
        {"fmt": 1, "name": "t", "topic_id": "i", "partition_count": 1, "replication_factor": 1, "configs": {}, "created_at_ms": 1},
    ),
    "topic id": (decode_topic_id, {"fmt": 1, "name": "t"}),
    "broker": (
        decode_broker,
        BROKER,
    ),
    "broker with roles": (
        decode_broker,
        {**BROKER, "fmt": 2, "roles": ["produce", "consume"]},
    ),
    "cluster": (decode_cluster, {"fmt": 1, "cluster_id": "c", "created_at_ms": 1}),
    "store marker": (_by_path(decode_marker), {"fmt": 1, "cluster_id": "c", "created_at_ms": 1}),
    "collections": (decode_collections, {"fmt": 1, "number": 1, "at_ms": 1, "kept": [], "missing": [], "lost": []}),
    "producer ids": (decode_next_block, {"fmt": 1, "next_producer_id": 1}),
    "claim": (decode_claim, {"fmt": 1, "broker_id": 1, "session_id": 1}),
    "group": (decode_group, {**GROUP, "topics": ["a"], "members": [MEMBER]}),
    "head of a group": (decode_head, {**GROUP, "topics": ["a"], "members": [MEMBER]}),
    "topics of a group": (decode_topics, {"fmt": 1, "owner": 1, "topics": ["a"]}),
    "offset": (decode_offset, {"fmt": 1, "owner": 1, "offset": 1, "leader_epoch": 0, "metadata": "", "committed_at_ms": 1}),
}
ARRAYS = [
    ("manifest", ("segment",)),
    ("manifest with a merge", ("rewritten",)),
    ("manifest", ("pending", 0)),
    ("manifest", ("writers", "2")),
    ("manifest", ("producers", "7")),
    ("manifest", ("producers", "7", 1, 0)),
    ("manifest with an early entry", ("pending", 0)),
    ("index chunk", ("entries", 0)),
    ("page of producers", ("producers", "7")),
    ("group", ("members", 0)),
]
"""The structs inside that are arrays."""


def record_of(value: object) -> Record:
    return Record("llog/x", json.dumps(value).encode(), 1)


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []

    class Log:
        def error(self, event: str, **facts: object) -> None:
            lines.append({"event": event, **facts})

    monkeypatch.setattr(levels, "_log", Log())
    monkeypatch.setattr(levels, "_logged", set())
    return lines


@pytest.mark.parametrize("kind", RECORDS)
def test_a_field_of_a_newer_release_is_refused(kind: str) -> None:
    decode, value = RECORDS[kind]
    decode(record_of(value))

    with pytest.raises(IncompatibleFormat, match="of_a_newer_release"):
        decode(record_of({**value, "of_a_newer_release": {"5": 0}}))


@pytest.mark.parametrize("kind", RECORDS)
def test_a_higher_number_is_refused_whatever_else_is_there(kind: str) -> None:
    decode, value = RECORDS[kind]

    number = 5 if kind.startswith(("manifest", "index chunk")) else 3 if kind.startswith("broker") else 2
    for newer in ({**value, "fmt": number}, {"fmt": number}):
        with pytest.raises(IncompatibleFormat, match=f"format {number}"):
            decode(record_of(newer))


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_lacks_something_is_damaged_and_not_new(kind: str) -> None:
    decode, value = RECORDS[kind]

    with pytest.raises(Corrupt):
        decode(record_of({name: part for name, part in value.items() if name != "fmt"} | {"fmt": "x"}))


@pytest.mark.parametrize("kind", RECORDS)
def test_text_that_is_no_utf8_is_damage(kind: str) -> None:
    decode, value = RECORDS[kind]
    damaged = b'{"\xff\xfe":1,' + record_of(value).value[1:]

    with pytest.raises(Corrupt):
        decode(Record("llog/x", damaged, 1))


@pytest.mark.parametrize(("kind", "way"), ARRAYS)
def test_an_element_more_is_refused(kind: str, way: tuple[Any, ...]) -> None:
    decode, value = RECORDS[kind]
    value = json.loads(json.dumps(value))
    inner: Any = value
    for step in way:
        inner = inner[step]
    inner.append("of a newer release")

    with pytest.raises(IncompatibleFormat, match="at most length"):
        decode(record_of(value))


@pytest.mark.parametrize(
    ("kind", "list_name"), [("manifest with an early entry", "pending"), ("index chunk with an early entry", "entries")]
)
def test_a_field_more_of_where_early_batches_lie_is_refused(kind: str, list_name: str) -> None:
    decode, value = RECORDS[kind]
    batches = {**EARLY_ENTRY[3], "of_a_newer_release": 1}  # type: ignore[dict-item]

    with pytest.raises(IncompatibleFormat, match="of_a_newer_release"):
        decode(record_of({**value, list_name: [[*EARLY_ENTRY[:3], batches, *EARLY_ENTRY[4:]]]}))


@pytest.mark.parametrize("kind", ["manifest with an early entry", "index chunk with an early entry"])
def test_a_release_before_early_slices_says_that_a_newer_one_wrote_the_record(kind: str) -> None:
    """Its decoder meets an object where it knows arrays and texts."""
    known = levels.FORMATS[levels.LEVEL_OF_EARLY - 1]["manifest, index chunk, producer state"]
    data = record_of(RECORDS[kind][1]).value
    met = msgspec.ValidationError("Expected `array | str`, got `object` - at `$.pending[0][3]`")

    refused = levels.undecodable(met, data, known=known, path="llog/x")

    assert isinstance(refused, IncompatibleFormat)
    assert str(refused).startswith("written by format 4, this program knows up to 3: key='llog/x'")


@pytest.mark.parametrize(("kind", "field"), [("manifest", "log_state"), ("topic", "state")])
def test_a_name_that_is_not_known_is_refused(kind: str, field: str) -> None:
    decode, value = RECORDS[kind]

    with pytest.raises(IncompatibleFormat, match="Invalid enum value"):
        decode(record_of({**value, field: "MOVED"}))


def test_an_array_that_is_too_short_is_damage() -> None:
    decode, value = RECORDS["manifest"]

    with pytest.raises(Corrupt, match="at least length"):
        decode(record_of({**value, "pending": [[1]]}))


def test_it_is_logged_once_for_a_key_with_the_release_and_for_so_many_keys(logged: list[dict[str, object]]) -> None:
    decode, value = RECORDS["offset"]
    for number in range(levels.LOGGED_MAX + 50):
        for _ in range(3):
            with pytest.raises(IncompatibleFormat):
                decode(Record(f"llog/{number}", json.dumps({**value, "more": 1}).encode(), 1))

    assert len(logged) == levels.LOGGED_MAX
    assert {name: logged[0][name] for name in ("event", "key", "fmt", "release")} == {
        "event": "newer_format",
        "key": "llog/0",
        "fmt": 1,
        "release": levels.forebay_version(),
    }
    assert "Object contains unknown field `more`" in str(logged[0]["cause"])


@pytest.mark.parametrize("more", [{"ongoing_txns": {"5": 0}}, {"pending": [[*ENTRY, "more"]]}, {"fmt": 5}])
async def test_a_commit_writes_nothing_over_a_manifest_of_a_newer_release(more: dict[str, Any]) -> None:
    """The review's X: the fields were gone with the next commit."""
    async with rig() as broker:
        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        key = PartitionKeys(PARTITION).manifest
        (record,) = await broker.shared.get_many([key])
        assert record is not None
        newer = json.dumps({**json.loads(record.value), **more}).encode()
        await broker.shared.write([Put(key, newer, None)])
        (answer,) = await broker.send(batch_bytes(1))
        (after,) = await broker.shared.get_many([key])

        assert isinstance(answer, IncompatibleFormat)
        assert after is not None
        assert after.value == newer


def test_every_struct_of_a_record_refuses_what_it_does_not_know() -> None:
    from storage.catalog import brokers, groups, identity, producer_ids, topic
    from storage.formats import manifest

    lenient = {identity._Level}
    structs = [
        struct
        for module in (brokers, identity, groups, producer_ids, topic, manifest)
        for struct in vars(module).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and struct.__module__ == module.__name__
    ]

    assert len(structs) > 15
    assert [struct.__name__ for struct in structs if not struct.__struct_config__.forbid_unknown_fields and struct not in lenient] == []


def test_the_level_of_this_release_names_the_formats_that_are_written() -> None:
    from storage.catalog import brokers, groups, identity, producer_ids, topic
    from storage.formats import manifest, segment

    assert segment.FMT == manifest.COMPACTION_FMT == brokers.COMPACTOR_FMT
    assert levels.FORMATS[levels.LEVEL_MAX] == {
        "WAL object": wal.FMT_EARLY,
        "manifest, index chunk, producer state": manifest.FMT_EARLY,
        "early page": early_page.FMT,
        "topic, its name by id": topic.TOPIC_FMT,
        "broker": brokers.BROKER_FMT_ROLES,
        "cluster": identity.CLUSTER_FMT,
        "store marker": identity.MARKER_FMT,
        "producer ids": producer_ids.FMT,
        "group, its topics, offset, coordinator": groups.FMT,
        "segment, segment entry, compaction, compactor": segment.FMT,
    }
    assert sorted(levels.FORMATS) == list(range(levels.LEVEL_FIRST, levels.LEVEL_MAX + 1))


def test_the_page_has_the_levels_of_the_code() -> None:
    page = (Path(__file__).parents[4] / "docs/internals/formats/README.md").read_text()
    table = page[page.index("| level | brings |") :].partition("\n\n")[0]
    header, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]

    found = {int(row[0]): dict(zip(header[2:], row[2:], strict=True)) for row in rows}
    assert {level: {name: int(fmt) for name, fmt in one.items() if fmt} for level, one in found.items()} == levels.FORMATS
