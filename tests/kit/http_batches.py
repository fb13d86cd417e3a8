"""Batches as the HTTP API writes them."""

from typing import Final

from broker.http.records import AnyRecord, values_of
from storage.record_values import SequencedBy, Written, batch_bytes, codec_number, write_batch, write_values_in_steps
from storage.records import compress_records

NOW_MS: Final = 1_760_000_000_000


def batch_of(records: list[AnyRecord], codec: str = "none") -> bytearray:
    """One batch of producer 7, epoch 1, sequence 5."""
    steps = write_values_in_steps(records, now_ms=NOW_MS, values_of=values_of)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            written: Written = end.value
            break
    packed = compress_records(written.body, codec_number(codec))
    batch = bytearray(batch_bytes(packed))
    write_batch(memoryview(batch), written, packed, codec_number(codec), SequencedBy(7, 1, 5))
    return batch
