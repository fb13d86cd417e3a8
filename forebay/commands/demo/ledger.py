"""What was sent, partition by partition, against what was read: count, order and content of every record."""

import zlib
from array import array
from collections.abc import Iterator, Sequence


def checksum(key: bytes, value: bytes, timestamp_ms: int) -> int:
    """CRC-32 over timestamp, length of the key, key and value."""
    head = timestamp_ms.to_bytes(8, "big", signed=True) + len(key).to_bytes(4, "big")
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(head)))


class Ledger:
    """A checksum per record, at the index that is its offset: a fresh topic counts from 0 and leaves no gap."""

    def __init__(self, partition_count: int) -> None:
        self._checksums = [array("I") for _ in range(partition_count)]

    @property
    def record_count(self) -> int:
        return sum(map(len, self._checksums))

    def counts(self) -> list[int]:
        """Records by partition: the offset the next one would have."""
        return [len(checksums) for checksums in self._checksums]

    def note(self, partition: int, key: bytes, value: bytes, timestamp_ms: int) -> None:
        self._checksums[partition].append(checksum(key, value, timestamp_ms))

    def at(self, partition: int) -> Sequence[int]:
        return self._checksums[partition]


def differences(sent: Ledger, read: Ledger) -> Iterator[str]:
    """One line per partition that is not the same on both sides."""
    for partition, expected in enumerate(sent.counts()):
        ours, theirs = sent.at(partition), read.at(partition)
        first = next((offset for offset, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        if first is not None:
            yield f"partition {partition}: the record at offset {first} is not the one that was sent there"
        elif len(theirs) != expected:
            yield f"partition {partition}: {expected} records were sent, {len(theirs)} were read"
