"""What decoded records of the log take in memory, estimated: at least three quarters of it (tests/unit/storage/log/test_sizes.py)."""

from collections.abc import Sequence
from typing import Final

from storage.formats.control import Control, Entry

CONTROL_BYTES: Final = 600
ENTRY_BYTES: Final = 310
SPAN_BYTES: Final = 125
WRITER_BYTES: Final = 120
PRODUCER_BYTES: Final = 150
PRODUCER_BATCH_BYTES: Final = 175
PAGE_REF_BYTES: Final = 300


def entries_bytes(entries: Sequence[Entry]) -> int:
    return ENTRY_BYTES * len(entries) + SPAN_BYTES * sum([len(entry.spans) for entry in entries])


def control_bytes(control: Control | None) -> int:
    if control is None:
        return 0
    size_bytes = CONTROL_BYTES + entries_bytes(control.pending) + WRITER_BYTES * len(control.writers) + PAGE_REF_BYTES * len(control.pages)
    if control.producers:
        batches = sum([len(state.batches) for state in control.producers.values()])
        size_bytes += PRODUCER_BYTES * len(control.producers) + PRODUCER_BATCH_BYTES * batches
    return size_bytes
