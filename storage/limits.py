"""Every hard bound of the log, asserted against the others (I11)."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

BATCH_BYTES_DEFAULT_MAX: Final = 1_048_588
"""Kafka's default of max.message.bytes: 1 MiB and the log overhead of 12 bytes."""

FRAME_BYTES_MAX: Final = 100 * MIB
"""socket.request.max.bytes."""
REQUEST_SHARE_MAX: Final = 3 / 4
"""The part of the memory for requests that one may take, and all together before the larger ones wait."""

WAL_OBJECT_BYTES_MAX: Final = 256 * MIB
WAL_OBJECT_SLICES_MAX: Final = 65_535
FLUSH_PARTITIONS_MAX: Final = 1_000

SEGMENT_BYTES_TARGET: Final = 64 * MIB
"""From which size on a segment takes no further batch."""
SEGMENT_BYTES_MAX: Final = SEGMENT_BYTES_TARGET + WAL_OBJECT_BYTES_MAX
"""Entries become part of a segment as a whole, and the last one may hold all of a WAL object."""
SEGMENT_BLOCK_BYTES_TARGET: Final = 256 * KIB
"""From which size on a block of a segment takes no further batch."""
SEGMENT_BLOCKS_MAX: Final = SEGMENT_BYTES_MAX // SEGMENT_BLOCK_BYTES_TARGET
SEGMENT_FOOTER_BYTES_MAX: Final = 1 * MIB
"""Its blocks take 50 KiB at most; the rest is room for facts to come."""

PENDING_ENTRIES_MAX: Final = 16
INLINE_BYTES_MAX: Final = 8 * KIB
"""What a commit may carry, at most: a setting says how much it does. The largest control record has room for as much, in base64."""
INLINE_PENDING_BYTES_MAX: Final = 8 * KIB
"""Batches in the ring of a control record: one that would have more leaves with the next commit, as a full one does."""
INLINE_UNCOMPACTED_BYTES_MAX: Final = 1024 * MIB
"""A broker's commits carry no more while as much is not compacted: some 20 minutes of 1,700 small batches a second."""
CONTROL_BYTES_TARGET: Final = 2 * KIB
CONTROL_BYTES_MAX: Final = 28 * KIB
PRODUCERS_HOT_MAX: Final = 128
PRODUCERS_HOT_BYTES_MAX: Final = 8 * KIB
"""Estimated bytes of producer state in a control record; what exceeds it leaves for pages in producers/."""
PRODUCER_PAGE_BYTES_MAX: Final = 48 * KIB
"""Estimated; an estimate is at least 3/4 of the bytes."""
PRODUCER_PAGES_MAX: Final = 48
"""Pages of a partition from which on the oldest are forgotten, or new producers refused: 6,000 to 8,000 producers."""
PRODUCER_PAGES_WRITTEN_MAX: Final = 12
"""Pages that one commit may touch; what needs more is committed in several."""
PRODUCERS_PER_COMMIT_MAX: Final = 1_024
PRODUCER_KEPT_MS_MIN: Final = 600_000
"""A full partition forgets no producer that appended within this: several times the delivery.timeout.ms of a producer."""
WRITERS_KEPT_MAX: Final = 16
"""Entries of `writers` above which a commit looks for dead brokers to drop."""
PRODUCER_BATCHES_KEPT: Final = 5
"""As Kafka: max.in.flight.requests.per.connection of an idempotent producer is at most 5."""

COMMIT_BATCHES_MAX: Final = 4_096
"""Batches of one partition in one commit; more wait for the next flush."""

METADATA_VALUE_BYTES_MAX: Final = 64 * KIB
WRITE_REQUEST_BYTES_MAX: Final = 1 * MIB
WRITE_REQUEST_OPS_MAX: Final = 1_000

BLOCK_BYTES: Final = 4 * MIB
PART_BYTES: Final = 512 * KIB
"""What was read is kept in parts of this to twice this: each is memory of its own, which whoever sends a piece of it keeps alive."""
FETCH_RESPONSE_BYTES_MAX: Final = 8 * MIB
"""Record bytes in one Fetch response, the first batch excepted; what a client that stops reading may pin."""

SEQUENCE_MAX: Final = 2**31 - 1

assert FRAME_BYTES_MAX <= WAL_OBJECT_BYTES_MAX, "the batches of a legal request must fit in an empty object"
assert FLUSH_PARTITIONS_MAX <= WAL_OBJECT_SLICES_MAX, "an object counts its slices in a uint16"
assert PRODUCERS_HOT_BYTES_MAX < CONTROL_BYTES_MAX
assert INLINE_BYTES_MAX <= INLINE_PENDING_BYTES_MAX, "a ring that was drained has room for what a commit carries"
assert CONTROL_BYTES_MAX <= METADATA_VALUE_BYTES_MAX, "a control record is a legal value"
assert PRODUCER_PAGE_BYTES_MAX * 4 // 3 <= METADATA_VALUE_BYTES_MAX, "a page is a legal value"
assert CONTROL_BYTES_MAX * 2 + PRODUCER_PAGES_WRITTEN_MAX * PRODUCER_PAGE_BYTES_MAX + PRODUCERS_PER_COMMIT_MAX * 300 <= (
    WRITE_REQUEST_BYTES_MAX
), "a commit (chunk, pages and control) fits one request; where an estimate was too low, it is made smaller"
assert BATCH_BYTES_DEFAULT_MAX < FRAME_BYTES_MAX
assert BLOCK_BYTES % PART_BYTES == 0
