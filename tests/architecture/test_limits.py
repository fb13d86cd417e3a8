"""docs/reference/limits.md is true: its values are those of the code, its tests exist, and no bound is missing."""

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from forebay.reference import settings_table
from process.settings.reference import SETTINGS
from storage.limits import FRAME_BYTES_MAX, WAL_OBJECT_BYTES_MAX
from tests.architecture.trees import nodes_of, tree_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "limits.md"
BOUND: Final = re.compile(r"^([A-Z][A-Z_0-9]*_MAX)\b.*=", re.MULTILINE)
FIELD: Final = re.compile(r"^    ([a-z][a-z_0-9]*_max): .*=", re.MULTILINE)
LIMITS: Final = re.compile(r"^class (\w+Limits)\b.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
CONSTANT: Final = re.compile(r"(\S+\.py) ([A-Z][A-Z_0-9]*|\w+Limits\.[a-z][a-z_0-9]*)")
KIB: Final = 1024
MIB: Final = 1024 * KIB
SHARES: Final[dict[object, str]] = {
    3 / 8: "⅜",
    2: "half",
    1 / 2: "half",
    4: "a quarter",
    1 / 4: "a quarter",
    3 / 4: "three quarters",
    3: "a third",
    7 / 8: "⅞",
}

ELSEWHERE: Final = {
    # What a format, a protocol or a library says: nothing is kept or refused by them.
    "broker/protocol/wire.py UVARINT_BYTES_MAX": "the length of a number on the wire",
    "storage/log/flush.py ACK_BURST_GROWS_MAX": "which flushes are paced",
    "storage/records.py VARINT_BYTES_MAX": "the length of a number in a record",
    "storage/records.py LZ4_LEVEL_MAX": "a level that a topic's config may name",
    "storage/records.py ZSTD_LEVEL_MAX": "a level that a topic's config may name",
    "storage/limits.py SEQUENCE_MAX": "where sequences wrap",
    "broker/http/records.py TIMESTAMP_MAX": "the largest number that a batch has room for",
    "process/settings/notation.py LABELS_MAX": "a setting of the operator's, refused when it is loaded",
    "process/settings/notation.py LABEL_CHARS_MAX": "a setting of the operator's, refused when it is loaded",
    "storage/log/writer.py TURNS_MAX": "how long commits wait for each other; what they are is bounded by early_commits_at_once_max",
    "storage/formats/levels.py LEVEL_MAX": "the newest format",
    "storage/log/trim.py CONFLICTS_MAX": "attempts of one change of a manifest, as ATTEMPTS_MAX",
    "storage/limits.py SEGMENT_BYTES_MAX": "an object that only this program makes",
    "storage/limits.py SEGMENT_BLOCKS_MAX": "in an object that only this program makes",
    "storage/limits.py SEGMENT_FOOTER_BYTES_MAX": "in an object that only this program makes",
    "storage/catalog/brokers.py BROKER_ID_MAX": "the numbers that an id may be",
    "storage/objects/port.py KEY_LENGTH_MAX": "names that only this program makes",
    "storage/objects/s3/location.py PREFIX_LENGTH_MAX": "a part of storage.url",
    "storage/catalog/identity.py MARKER_BYTES_MAX": "an object that is read at the start",
    "storage/catalog/collections.py COUNT_BYTES_MAX": "an object that only this program makes",
    "storage/catalog/collections.py MARKS_READ_MAX": "which marks are compared: the newest know most",
    "storage/catalog/collections.py MARKS_LISTED_MAX": "which marks are compared: the newest know most",
    "storage/catalog/collections.py MARK_BYTES_MAX": "an object that only this program makes",
    "storage/catalog/collections.py COMMITS_MAX": "shards that one mark names: one is enough to tell",
    "storage/metadata/oxia/nodes.py TOKEN_BYTES_MAX": "a file that the operator names",
    "storage/metadata/oxia/http2.py RESPONSE_BYTES_MAX": "an answer of Oxia, far above what is ever asked of it",
    "storage/metadata/oxia/limits.py OxiaLimits.headers_bytes_max": "with a longer token requests go through gRPC",
    "storage/metadata/oxia/limits.py OxiaLimits.connect_pause_s_max": "a pause",
    "storage/metadata/oxia/http2.py REQUEST_BYTES_MAX": "what is longer goes through gRPC",
    "storage/metadata/oxia/http2.py REQUESTS_MAX": "what is more goes through gRPC",
    "storage/metadata/oxia/http2.py STREAM_MAX": "a number of HTTP/2: the next request takes another connection",
    "storage/metadata/oxia/http2.py HEADER_BYTES_MAX": "headers of the operator's Oxia",
    "storage/metadata/oxia/http2.py HEADERS_KEPT_MAX": "a cache of answers' headers",
    "storage/metadata/oxia/http2.py HEADERS_KEPT_BYTES_MAX": "a cache of answers' headers",
    # A command that looks at the stores: what does not fit is looked at again, or counted. tests/unit/storage/verify has their tests.
    "storage/verify/entry_order.py OVERLAP_ENTRIES_MAX": "entries that later chunks are compared with",
    "storage/verify/verification.py MANIFEST_READS_MAX": "looks at pages of producers that commits replace",
    "storage/verify/reading.py VerifyLimits.findings_kept_max": "findings that are listed; the others are counted by kind",
    "storage/verify/reading.py VerifyLimits.slices_kept_max": "headers that are not read again",
    "storage/verify/reading.py VerifyLimits.early_pages_max": "early pages that one look lists; the command says that there are more",
    "storage/formats/early_page.py PARTITIONS_MAX": "in a record that only this program makes",
    "storage/metadata/keys.py EARLY_POSITION_MAX": "the numbers that a key has room for",
    "storage/log/flush.py GATHERS_S_MAX": "how long a partition gathers that the budget had no turn for",
    "storage/log/limits.py LogLimits.early_commits_at_once_max": "how many commits wait for each other",
    "storage/log/limits.py LogLimits.early_pause_s_max": "a pause",
    "storage/log/limits.py LogLimits.early_kept_bytes_max": "a cache of pages: they are read again",
    "storage/log/reader.py PASSED_BYTES_MAX": "what is more is checked in a task",
    "storage/log/limits.py LogLimits.early_read_bytes_max": "the size of a read; the rest comes with the next",
    "storage/log/limits.py LogLimits.early_stored_kept_max": "objects known to be stored; of others it is asked",
    # How a thing is done: whoever asks gets the same answer, in the same memory.
    "broker/groups/coordinator.py GROUP_CHARS_SAID_MAX": "of a group's name in a line; docs/reference/limits.md bounds all fields",
    "broker/admission.py RANKED_MAX": "senders to evict that one look finds: the next finds the others",
    "broker/groups/group.py EXPIRED_TOGETHER_MAX": "what is left of a group goes with the next turn of the sweep",
    "broker/cluster/liveness.py ADDRESSES_MAX": "of a broker's own advertised name",
    "broker/groups/store.py LOAD_ATTEMPTS_MAX": "two coordinators of one group for a moment",
    "broker/limits.py GroupLimits.topics_named_max": "from which number on topics are named in a record beside the group's",
    "broker/limits.py GroupLimits.topics_page_max": "topics in one such record",
    "broker/limits.py GroupLimits.write_request_ops_max": "as storage/limits.py WRITE_REQUEST_OPS_MAX",
    "broker/groups/store.py SCANS_TOGETHER_MAX": "scans side by side while a group is loaded",
    "broker/groups/sweep.py LOOKS_MAX": "the pace of a sweep; the rest is looked at by later ones",
    "broker/groups/sweep.py REMEMBERED_MAX": "what one sweep tells the next: without it groups are looked at again",
    "broker/groups/sweep.py NAMES_TOGETHER_MAX": "topics in one read",
    "storage/cache/blocks.py FETCH_BLOCKS_MAX": "the size of a GET",
    "storage/log/limits.py LogLimits.whole_segment_bytes_max": "what is larger is read in blocks, and its footer with a GET of its own",
    "storage/log/limits.py LogLimits.ahead_gap_bytes_max": "what is fetched for nothing with a GET",
    "storage/objects/files.py PARTS_MAX": "what is read in more parts is read the ordinary way",
    "storage/cache/eviction.py AGED_AT_ONCE_MAX": "pieces that change their order in one go",
    "broker/handlers/log/fetch.py COPIED_SHARE_MAX": "what is copied of an answer; PINNED_BYTES_MAX bounds what it keeps alive",
    "process/cost/prices.py PRICE_MAX": "a slip in the operator's own file",
    "process/cost/prices.py STORES_MAX": "names in the operator's own file",
    "process/settings/loading.py VALUES_MAX": "values in the operator's own file",
    "process/malloc.py ARENAS_MAX": "where the allocator takes memory from",
    "storage/catalog/groups.py PLAIN_BYTES_MAX": "from which size on members are compressed",
    "storage/catalog/groups.py MEMBERS_PACKED_BYTES_MAX": "up to which size members are compressed: groups.memory_bytes bounds them",
    "storage/catalog/identity.py NAMED_MAX": "objects that are looked at when a broker starts",
    "storage/catalog/identity.py LISTED_MAX": "objects that are looked at when a broker starts",
    "storage/catalog/identity.py SLICES_MAX": "partitions that are looked at when a broker starts",
    "storage/catalog/limits.py CatalogLimits.change_attempts_max": "against other brokers that change the topic at the same time",
    "storage/catalog/limits.py CatalogLimits.creation_looks_max": "at a creation that another broker goes on with, before it is given up",
    "storage/catalog/topics.py PROOFS_MAX": "writes that prove a name free, against others that change it at the same time",
    "storage/log/flush.py CONFLICTS_MAX": "from which share of conflicts on batches are gathered",
    "storage/log/fresh_reads.py READ_KEYS_MAX": "partitions in one read",
    "storage/log/limits.py LogLimits.read_sources_max": "against compaction of the log that is read",
    "storage/log/partition.py LOOKED_AT_MAX": "logs that one use of another looks at for one to forget: the next use goes on",
    "storage/log/fresh_reads.py ATTEMPTS_MAX": "against others that write the record at the same time",
    "storage/log/partition.py DROPPED_KEPT_MAX": "slots of a list that are empty",
    "storage/log/limits.py LogLimits.trims_met_max": "against trims of the log that is searched",
    "storage/log/time_search.py WALKED_HERE_BYTES_MAX": "up to which size a batch is read without a thread",
    "storage/metadata/key_order.py CHUNK_KEYS_MAX": "of the store in memory",
    "storage/metadata/sqlite/store.py READ_ATTEMPTS_MAX": "against another process that changes the file",
    "storage/metadata/sqlite/commits.py CHANGE_PATHS_MAX": "in one hint: without it everything is looked at",
    "storage/metadata/oxia/assignments.py SOURCES_MAX": "servers of the operator's Oxia",
    "storage/metadata/oxia/following.py STREAMS_MAX": "streams from the operator's Oxia",
    "storage/metadata/oxia/following.py PAUSE_S_MAX": "a pause",
    "storage/metadata/oxia/store.py GETS_MAX": "keys in one read",
    "storage/metadata/oxia/store.py SESSION_TIMEOUT_MS_MAX": "of a broker's own session",
    "storage/metadata/oxia/nodes.py RECONNECT_BACKOFF_MS_MAX": "a pause",
    "storage/metadata/oxia/calls.py PAUSE_S_MAX": "a pause",
    "storage/objects/s3/client.py S3Limits.pause_s_max": "a pause",
    "storage/objects/hedged.py BUDGET_MAX": "second requests that were saved up: none of them is needed",
    "storage/objects/block_folder.py LISTED_MAX": "files of one object; blocks in others are read from the store",
    "storage/objects/shared_blocks.py DISTRUSTED_MAX": "objects that are read from the store next time",
    "broker/zone_cache/blocks.py DISTRUSTED_MAX": "objects that are read from the store next time",
    "storage/objects/disk.py FOLDERS_HELD_MAX": "descriptors of folders, part of those in reserve",
    "storage/objects/disk.py LINK_ATTEMPTS_MAX": "against others that remove the folder",
    "storage/objects/s3/client.py CONNECT_S_MAX": "a part of one try of a request",
    "storage/objects/s3/client.py REQUEST_S_MAX": "above what the tries of a request have",
    "storage/objects/s3/client.py CONNECTIONS_MAX": "part of the descriptors in reserve; more requests wait",
    "storage/objects/s3/object_store.py PART_TRIES_MAX": "tries of a part, within those of its request",
    "storage/objects/s3/object_store.py DELETE_KEYS_MAX": "keys in one request",
    "storage/objects/s3/client.py S3Limits.put_bytes_max": "above it an object goes in parts alone; none of ours is so large",
    "storage/objects/s3/credentials.py WAIT_S_MAX": "a part of one try of a request",
    "storage/objects/s3/endpoint.py HEAD_BYTES_MAX": "what a proxy answers to CONNECT, while a certificate is looked at",
    "storage/objects/s3/endpoint.py CAUSES_MAX": "errors behind an error that are looked through",
    "storage/objects/s3/endpoint.py AUTHORITIES_EXPECTED_MAX": "which of two messages names a certificate's authority",
    "storage/objects/s3/obstore_client.py PARTS_MAX": "from which number on parts are joined before they are sent",
}
"""Bounds that no client reaches, or that change nothing for any, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    bound: str
    value: str
    names: tuple[str, ...]
    tests: tuple[str, ...]


def quoted(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().partition("\n## One request\n")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "Bound":
            assert len(cells) == 5, line
            bound, value, _, names, tests = cells
            found.append(Row(bound, value, quoted(names), quoted(tests)))
    return found


ROWS: Final = rows()


def forms(name: str, value: object) -> set[str]:
    """How a page may write the value of a constant of this name."""
    if name.endswith(("SHARE", "SHARE_MAX", "SHARE_MIN")):
        return {SHARES[value]}
    assert isinstance(value, int | float), f"{name} is no number"
    number = f"{value:,}".removesuffix(".0")
    if re.search(r"(^|_)BYTES(_|$)", name):
        found = {f"{number} bytes", f"{number} characters"}
        for unit, size in (("KiB", KIB), ("MiB", MIB)):
            if value % size == 0:
                found.add(f"{value // size} {unit}")
        return found
    if re.search(r"_MS(_|$)", name):
        return {f"{number} ms", f"{value / 1_000:,.0f} s"}
    if re.search(r"_S(_|$)", name):
        return {f"{number} s"}
    return {number}


def defaults() -> dict[str, str]:
    """Of settings, as docs/reference/settings.md writes them."""
    table = [line.split(" | ") for line in settings_table().splitlines()]
    return {cells[0].strip("| `"): cells[2] for cells in table}


def constant(name: str) -> object:
    """The value of a constant, or the default of a field of a `…Limits` class."""
    path, _, attribute = name.partition(" ")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    owner, _, field = attribute.rpartition(".")
    return getattr(getattr(module, owner)(), field) if owner else getattr(module, field)


def bounds(path: Path) -> list[str]:
    """Names of the bounds that a file has, as constants or, in a limits.py or beside DEFAULT_LIMITS, as fields of a `…Limits` class."""
    text = path.read_text()
    if path.name != "limits.py" and re.search(r"^DEFAULT_LIMITS\b", text, re.MULTILINE) is None:
        return BOUND.findall(text)
    fields = [f"{found[1]}.{field}" for found in LIMITS.finditer(text) for field in FIELD.findall(found[0])]
    return [*BOUND.findall(text), *fields]


def says(text: str, form: str) -> bool:
    return re.search(rf"(?<![\d.,]){re.escape(form)}(?![\d.\w]|,\d)", text) is not None


@cache
def functions(path: Path) -> frozenset[str]:
    tree = tree_of(path)
    return frozenset(node.name for node in nodes_of(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_a_row_says_the_value_that_the_code_has() -> None:
    assert [one.bound for one in ROWS if not one.names] == [], "the setting or constant is named"
    for row, name in [(one, name) for one in ROWS for name in one.names]:
        if name in SETTINGS:
            assert says(row.value, defaults()[name].partition(";")[0]), f"{name} is {defaults()[name]}"
            continue
        assert CONSTANT.fullmatch(name), f"neither a setting nor a constant: {name}"
        expected = forms(re.split(r"[ .]", name)[-1].upper(), constant(name))
        assert any(says(row.value, form) for form in expected), f"{name} is to be written as one of {sorted(expected)}"


def test_the_tests_of_a_row_exist() -> None:
    for row in ROWS:
        assert row.tests, f"a test that reaches it is named: {row.bound}"
        for test in row.tests:
            path, _, function = test.partition("::")
            assert function.startswith("test_"), test
            assert function in functions(ROOT / "tests" / path), f"there is no {test}"


def test_every_bound_is_on_the_page_or_known_to_bound_no_client() -> None:
    there = {
        f"{path.relative_to(ROOT)} {name}"
        for package in ("broker", "process", "storage")
        for path in (ROOT / package).rglob("*.py")
        for name in bounds(path)
        if isinstance(constant(f"{path.relative_to(ROOT)} {name}"), int | float)
    }
    named = {name for row in ROWS for name in row.names}

    assert len(there) > 100
    assert sorted(there - named - ELSEWHERE.keys()) == [], "name them in docs/reference/limits.md with a test, or here with a reason"
    assert sorted(ELSEWHERE.keys() - there) == [], "there is no such bound any more"
    assert sorted(ELSEWHERE.keys() & named) == [], "on the page, and said to bound nobody"


def test_settings_that_bound_something_are_on_the_page() -> None:
    named = {name for row in ROWS for name in row.names}
    bounding = {key for key in SETTINGS if re.search(r"_(bytes|size|connections|timeout|timeout_max|timeout_min)$", key)}

    assert len(bounding) > 8
    assert sorted(bounding - named) == []


def test_the_limits_that_clients_meet_first_are_those_of_the_rows() -> None:
    section = PAGE.read_text().partition("\n## Limits that clients meet first\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split(" | ")[1] for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
    said = " ".join(f"{row.bound} {row.value} {' '.join(row.names)}" for row in ROWS)

    assert len(cells) > 8
    for cell in cells:
        assert [name for name in quoted(cell) if name not in SETTINGS] == []
        assert [number for number in re.findall(r"\d[\d,]*\d|\d", cell) if not says(said, number)] == [], cell


def test_an_object_has_room_for_the_largest_flush_and_the_batch_that_makes_it_due() -> None:
    flush_bytes_max = 128 * MIB  # of storage.flush_bytes

    assert "up to 128MiB" in PAGE.read_text()
    assert flush_bytes_max + FRAME_BYTES_MAX < WAL_OBJECT_BYTES_MAX
    with pytest.raises(ValueError, match="128MiB"):
        SETTINGS["storage.flush_bytes"].notation.parse("129MiB")
