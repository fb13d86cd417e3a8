"""Hard bounds that no caller changes, asserted against each other (I11). Those of the log are values: storage/log/limits.py."""

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

MANIFEST_BYTES_TARGET: Final = 2 * KIB
PRODUCERS_HOT_BYTES_MAX: Final = 8 * KIB
"""Estimated bytes of producer state in a manifest; what exceeds it leaves for pages in producers/."""
PRODUCER_PAGES_MAX: Final = 48
"""Pages of a partition from which on the oldest are forgotten, or new producers refused: 6,000 to 8,000 producers."""
PRODUCER_KEPT_MS_MIN: Final = 600_000
"""A full partition forgets no producer that appended within this: several times the delivery.timeout.ms of a producer."""
PRODUCER_BATCHES_KEPT: Final = 5
"""As Kafka: max.in.flight.requests.per.connection of an idempotent producer is at most 5."""

COMMIT_BATCHES_MAX: Final = 4_096
"""Batches of one partition in one commit; more wait for the next flush."""

METADATA_VALUE_BYTES_MAX: Final = 64 * KIB
EARLY_PAGE_BYTES_MAX: Final = 60 * KIB
"""Bytes of slices in one early page: with what names its partitions it is a legal value."""
EARLY_SLICE_BYTES_MAX: Final = 480 * KIB
"""A slice that is committed before its object is stored: with all else of its commit it fits one write request."""
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
assert BATCH_BYTES_DEFAULT_MAX < FRAME_BYTES_MAX
assert EARLY_SLICE_BYTES_MAX % EARLY_PAGE_BYTES_MAX == 0
assert BLOCK_BYTES % PART_BYTES == 0
