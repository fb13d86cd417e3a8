"""Segments of a format that this program does not know, or whose format was damaged on its way."""

import pytest

from storage.errors import IncompatibleFormat
from tests.unit.storage.log.made_segments import IDS, batch, put_segment, set_segments
from tests.unit.storage.log.rig import PARTITION, rig

FORMAT_AT = -9
"""The lower byte of it, before the eight of the magic number at the end."""


@pytest.mark.parametrize("damaged_answers", [1, 3])
async def test_a_format_that_was_damaged_on_its_way_is_read_again(damaged_answers: int) -> None:
    """The checksum of a footer is found by its format, so an unknown one may as well be that of a newer release."""
    async with rig(cache_bytes=1 << 24, block_bytes=1 << 20) as broker:
        await set_segments(broker, await put_segment(broker, IDS[0], [batch(0)], base=0, last=0))
        get_range, answers = broker.objects.inner.get_range, 0

        async def damaged(key: str, start: int, end: int) -> bytes:
            nonlocal answers
            answers += 1
            found = bytearray(await get_range(key, start, end))
            found[FORMAT_AT] ^= 64 if answers <= damaged_answers else 0
            return bytes(found)

        broker.objects.inner.get_range = damaged  # type: ignore[method-assign]
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.manifest_reads.refresh([log])
        for _ in range(damaged_answers):
            with pytest.raises(IncompatibleFormat, match=r"segment of format 65, .*part=trailer"):
                await broker.parts.reader.stored(log, 0, bytes_max=1_000)

        assert bytes((await broker.parts.reader.stored(log, 0, bytes_max=1_000)).buffer) == bytes(batch(0))
