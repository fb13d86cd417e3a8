"""What a verification finds, in words for an operator: what is there, what it means, what to do."""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from storage.errors import IncompatibleFormat, StorageError

_FROM_BACKUP: Final = "Restore the metadata store from a backup."
_RESTORE: Final = (
    "Restore the object from a version or copy of the bucket. Without one, give these records up: `forebay topic trim` deletes them, and "
    "all before them, after asking."
)
_REPORT: Final = "No operation of Forebay leaves this: report it with this output, and stop compactors until it is understood."


class Severity(Enum):
    ERROR = "error"
    """Records cannot be read, or are not those that were written."""
    WARNING = "warning"
    """All records can be read, but something that is derived from them is wrong."""
    INFO = "info"
    """Nothing is wrong."""


class _Explained(NamedTuple):
    severity: Severity
    means: str
    do: str


class FindingKind(Enum):
    """Every kind of finding. The value is its name in JSON."""

    MANIFEST_MISSING = "control_missing"
    UNDECODABLE = "undecodable"
    NEWER_FORMAT = "newer_format"
    MANIFEST_CONTRADICTS = "control_contradicts"
    ENTRIES_MISSING = "entries_missing"
    WRONG_KEY = "wrong_key"
    MALFORMED_ENTRY = "malformed_entry"
    OVERLAP_DISAGREES = "overlap_disagrees"
    ABOVE_THE_END = "above_the_end"
    RUNNING_MAXIMUM = "running_maximum"
    BYTES_TOTAL = "bytes_total"
    PRODUCERS_MISSING = "producers_missing"
    OBJECT_MISSING = "object_missing"
    EARLY_PAGE_DAMAGED = "early_page_damaged"
    OBJECT_CUT = "object_cut"
    HEADER_DAMAGED = "header_damaged"
    NOT_NAMED = "not_named"
    BATCH_DAMAGED = "batch_damaged"
    OFFSETS_WRONG = "offsets_wrong"
    TIMESTAMP_WRONG = "timestamp_wrong"
    HEADER_TIME_WRONG = "header_time_wrong"
    FOOTER_DAMAGED = "footer_damaged"
    BLOCK_DAMAGED = "block_damaged"
    COMPACTION_LEFT = "compaction_left"
    UNREFERENCED = "unreferenced"
    EARLY_PAGES_UNNAMED = "early_pages_unnamed"


_EXPLAINED: Final = {
    FindingKind.MANIFEST_MISSING: _Explained(
        Severity.ERROR, "The topic exists and this partition has no manifest: it can be neither read nor written.", _FROM_BACKUP
    ),
    FindingKind.UNDECODABLE: _Explained(Severity.ERROR, "The record is not what was written: what it names cannot be found.", _FROM_BACKUP),
    FindingKind.NEWER_FORMAT: _Explained(
        Severity.ERROR, "A newer release wrote this, so it was not judged. That release can read it.", "Run this command of that release."
    ),
    FindingKind.MANIFEST_CONTRADICTS: _Explained(
        Severity.ERROR, "The manifest contradicts itself: some of these offsets cannot be found.", _REPORT
    ),
    FindingKind.ENTRIES_MISSING: _Explained(
        Severity.ERROR, "These offsets were committed, and nothing says where their records lie: they cannot be read.", _FROM_BACKUP
    ),
    FindingKind.WRONG_KEY: _Explained(
        Severity.ERROR,
        "The key must be the last offset of its value: readers of some of these offsets find the wrong record.",
        _REPORT,
    ),
    FindingKind.MALFORMED_ENTRY: _Explained(
        Severity.ERROR, "The entry names no bytes of an object: these offsets cannot be read.", _REPORT
    ),
    FindingKind.OVERLAP_DISAGREES: _Explained(
        Severity.ERROR, "Two records name different bytes for one offset: readers may see either.", _REPORT
    ),
    FindingKind.ABOVE_THE_END: _Explained(
        Severity.ERROR, "The entry covers offsets that were not committed there: what is appended next may be hidden by it.", _REPORT
    ),
    FindingKind.RUNNING_MAXIMUM: _Explained(
        Severity.WARNING, "The greatest timestamp up to an entry is wrong: offsets by time may be wrong. All records can be read.", _REPORT
    ),
    FindingKind.BYTES_TOTAL: _Explained(
        Severity.WARNING, "The bytes that were ever appended are not the sum of the entries: sizes of logs are shown wrong.", _REPORT
    ),
    FindingKind.PRODUCERS_MISSING: _Explained(
        Severity.ERROR,
        "The states of some idempotent producers cannot be read: appends of these producers are refused.",
        _FROM_BACKUP,
    ),
    FindingKind.OBJECT_MISSING: _Explained(
        Severity.ERROR, "The object is gone, and entries name it: these offsets cannot be read.", f"Check storage.url. {_RESTORE}"
    ),
    FindingKind.EARLY_PAGE_DAMAGED: _Explained(
        Severity.ERROR,
        "The object of the entry is not stored yet, and the early page that has its bytes is not what was written: these offsets cannot be "
        "read.",
        "Verify again in a minute: while the broker that wrote it runs, it stores the object. If it is gone, restore the metadata store "
        "from a backup, or give these records up: `forebay topic trim` deletes them, and all before them, after asking.",
    ),
    FindingKind.OBJECT_CUT: _Explained(
        Severity.ERROR, "The object has another size than was written: some of these offsets cannot be read.", _RESTORE
    ),
    FindingKind.HEADER_DAMAGED: _Explained(
        Severity.WARNING,
        "Readers do not need the header of a WAL object, but the collector cannot tell whose it is. Its batches may be damaged as well.",
        f"Verify with --deep. {_RESTORE}",
    ),
    FindingKind.NOT_NAMED: _Explained(
        Severity.ERROR,
        "The object's header gives these bytes to no slice of the partition: readers get records of another one, or none.",
        _REPORT,
    ),
    FindingKind.BATCH_DAMAGED: _Explained(
        Severity.ERROR, "The bytes are not the batches that were written: these offsets cannot be read.", _RESTORE
    ),
    FindingKind.OFFSETS_WRONG: _Explained(
        Severity.ERROR, "The batches are whole, but have other offsets than the metadata say: readers may miss records.", _REPORT
    ),
    FindingKind.TIMESTAMP_WRONG: _Explained(
        Severity.WARNING,
        "The greatest timestamp is not that of the batches: offsets by time may be wrong.",
        _REPORT,
    ),
    FindingKind.HEADER_TIME_WRONG: _Explained(
        Severity.WARNING,
        "A producer wrote another greatest time into the header of a batch than its records have, and an earlier release kept it: "
        "offsets by time miss these records, and retention judges them by the wrong time. All records can be read.",
        "Nothing for a WAL object or an inline entry: compaction corrects it. A segment stays as it is: read it by offsets, or copy the "
        "topic; what is produced now is corrected as it is appended.",
    ),
    FindingKind.FOOTER_DAMAGED: _Explained(
        Severity.ERROR, "The segment's header or footer is not what was written: these offsets cannot be read.", _RESTORE
    ),
    FindingKind.BLOCK_DAMAGED: _Explained(
        Severity.ERROR, "A block of the segment is not what was written: its offsets cannot be read.", _RESTORE
    ),
    FindingKind.COMPACTION_LEFT: _Explained(
        Severity.INFO, "A compaction was begun and nobody is at it.", "Nothing: the next compaction finishes or drops it."
    ),
    FindingKind.UNREFERENCED: _Explained(
        Severity.INFO,
        "No entry names these objects: uploads under way, uploads that were never committed, trimmed or compacted records, deleted topics.",
        "Nothing: garbage collection removes them.",
    ),
    FindingKind.EARLY_PAGES_UNNAMED: _Explained(
        Severity.INFO,
        "No entry names these early pages: commits under way or refused, trimmed or compacted records, deleted topics.",
        "Nothing: their broker removes them when it has stored their object, and garbage collection those of brokers that are gone.",
    ),
}
assert _EXPLAINED.keys() == set(FindingKind), "every kind is explained"


class StoreFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets are first..last, inclusive. What does not apply is null."""

    severity: Severity
    kind: FindingKind
    topic: str | None = None
    partition: int | None = None
    key: str | None = None
    """The key of the metadata store that holds or names what is wrong."""
    object: str | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    found: str
    """What is there instead of what should be."""
    means: str
    do: str


FindingReport = Callable[[StoreFinding], None]


def finding(
    kind: FindingKind,
    found: str,
    *,
    key: str | None = None,
    object_key: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> StoreFinding:
    severity, means, do = _EXPLAINED[kind]
    return StoreFinding(
        severity=severity, kind=kind, key=key, object=object_key, first_offset=first, last_offset=last, found=found, means=means, do=do
    )


def kind_of(error: StorageError, otherwise: FindingKind) -> FindingKind:
    """The kind of a finding that something could not be decoded."""
    return FindingKind.NEWER_FORMAT if isinstance(error, IncompatibleFormat) else otherwise
