"""docs/internals/design/keys.md lists every key of storage/metadata/keys.py, on the shard where it lies, and every name of an object."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from storage.catalog.collections import COUNTS_PREFIX, MARKS_PREFIX
from storage.catalog.groups import topics_key
from storage.catalog.identity import MARKER_KEY
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.metadata import keys
from storage.metadata.port import Key
from storage.objects.port import PROBES, TEMPORARY_FOLDER
from storage.vocabulary import ObjectId, PartitionId, TopicId

PAGE: Final = (Path(__file__).parents[2] / "docs/internals/design/keys.md").read_text()
ROWS: Final[Mapping[str, str]] = dict(re.findall(r"^\| `(llog/[^`]+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
OBJECT_NAMES: Final = re.findall(r"^\| `([^`]+)` \|", PAGE.split("## Object names")[1], re.MULTILINE)

ULID: Final = "01JGFJJZ005591T038X855YAFS"
PARTITION: Final = PartitionId(TopicId("8e66447a-4af2-46f2-9663-5c2cb2777f87"), 3)
OF_PARTITION: Final = keys.PartitionKeys(PARTITION)
OF_GROUP: Final = keys.GroupKeys("baristas", 32)
FUNCTIONS: Final[Mapping[str, Key]] = {
    "topic": keys.topic("orders"),
    "topic_id": keys.topic_id(PARTITION.topic_id),
    "broker": keys.broker(7),
    "broker_sentinel": keys.broker_sentinel(12, 3),
    "beside_brokers": keys.beside_brokers("llog/brokers/0000000007"),
    "compactor": keys.compactor(ULID),
    "probe": keys.probe(7),
    "doctor_probe": keys.doctor_probe(ULID),
    "age_sentinel": keys.age_sentinel(ULID, "llog"),
    "coordinator": keys.coordinator(5),
    "early_page": keys.early_page(ObjectId(ULID), 64, OF_PARTITION.partition_key),
}
OF_CLASSES: Final[Mapping[str, Key]] = {
    "GroupKeys.group": OF_GROUP.group,
    "GroupKeys.offset": OF_GROUP.offset(PARTITION),
    "PartitionKeys.manifest": OF_PARTITION.manifest,
    "PartitionKeys.index": OF_PARTITION.index(41),
    "PartitionKeys.segment": OF_PARTITION.segment(41),
    "PartitionKeys.index_sentinel": OF_PARTITION.index_sentinel(ULID),
    "PartitionKeys.segment_sentinel": OF_PARTITION.segment_sentinel(ULID),
    "PartitionKeys.producer_page": OF_PARTITION.producer_page("17-2-18-1-0"),
    "PartitionKeys.compaction": OF_PARTITION.compaction,
    "PartitionKeys.compactor_claim": OF_PARTITION.compactor_claim,
}
MADE: Final[Mapping[str, Key]] = {
    "CLUSTER": keys.CLUSTER,
    "COLLECTIONS": keys.COLLECTIONS,
    "PRODUCER_IDS": keys.PRODUCER_IDS,
    "ZONE_SECRET": keys.ZONE_SECRET,
    "topics_key": topics_key(OF_GROUP, 0),
    **FUNCTIONS,
    **OF_CLASSES,
}


def pattern_of(name: str) -> re.Pattern[str]:
    """`{p:05}` stands for five digits, any other name in braces for what has no slash."""
    parts = re.split(r"(\{[^}]+\})", name)
    return re.compile("".join(_part(part) for part in parts))


def _part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    width = re.search(r":0(\d+)\}", part)
    return rf"\d{{{int(width[1])}}}" if width else "[^/]+"


@pytest.mark.parametrize("name", MADE)
def test_every_key_is_on_the_page_once_and_on_its_shard(name: str) -> None:
    key = MADE[name]
    rows = [row for row in ROWS if pattern_of(row).fullmatch(key.path)]

    assert len(rows) == 1, f"{key.path}: {rows}"
    assert pattern_of(ROWS[rows[0]]).fullmatch(key.partition_key)


@pytest.mark.parametrize("row", ROWS)
def test_every_key_on_the_page_is_made(row: str) -> None:
    assert any(pattern_of(row).fullmatch(key.path) for key in MADE.values())


def test_the_page_and_the_module_list_the_same_keys() -> None:
    assert keys.__doc__ is not None

    assert re.findall(r"^ {4}(llog/\S+)", keys.__doc__, re.MULTILINE) == list(ROWS)


def test_no_function_that_makes_a_key_is_left_out() -> None:
    def makers(of: object) -> set[str]:
        members = vars(of).items()
        return {name for name, made in members if inspect.isfunction(made) and inspect.signature(made).return_annotation is Key}

    assert makers(keys) == set(FUNCTIONS)
    assert {f"{one.__name__}.{name}" for one in (keys.GroupKeys, keys.PartitionKeys) for name in makers(one)} <= set(OF_CLASSES)


def test_the_names_of_objects_are_on_the_page() -> None:
    made = [
        MARKER_KEY,
        object_key(ObjectId(ULID)),
        segment_key(PARTITION, ObjectId(ULID)),
        f"{PROBES}{ULID}",
        f"{TEMPORARY_FOLDER}/owner-3",
    ]

    for name in made:
        assert any(pattern_of(row).fullmatch(name) for row in OBJECT_NAMES), name
    assert all(
        row.startswith((MARKER_KEY, COUNTS_PREFIX, MARKS_PREFIX, "wal/", "segments/", PROBES, f"{TEMPORARY_FOLDER}/"))
        for row in OBJECT_NAMES
    )
    assert any(pattern_of(row).fullmatch(f"{PROBES}clock-0000000007") and row.startswith(f"{PROBES}clock") for row in OBJECT_NAMES)
