"""In which codecs a topic was written: what a client says of it is not enough, some write uncompressed without a word."""

from collections.abc import Iterator
from typing import Final

from storage.recordbatch import CODEC_MASK, HEADER_BYTES, parse_header
from tests.kit.kafka_messages import frame, plain
from tests.kit.raw_client import RawClient

_FETCH: Final = 1
_FETCH_VERSION: Final = 11
_FETCH_BYTES_MAX: Final = 1024 * 1024
"""More than a client writes in the step."""
_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def written(bootstrap: str, topic: str) -> frozenset[str]:
    """The codecs of the batches of partition 0, which may be none because there is no such topic, or no broker any more."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": _FETCH_BYTES_MAX}
    fields = {"session_epoch": -1, "max_bytes": _FETCH_BYTES_MAX, "topics": [{"topic": topic, "partitions": [partition]}]}
    try:
        with RawClient(int(bootstrap.rpartition(":")[2])) as client:
            client.send(frame(_FETCH, _FETCH_VERSION, fields, correlation_id=1))
            received = client.receive()
    except OSError:  # the broker has ended, which is told by others
        received = None
    if received is None:
        return frozenset()
    (answer,) = plain(_FETCH, _FETCH_VERSION, received)["responses"]
    return frozenset(codecs_of(bytes.fromhex(answer["partitions"][0]["records"] or "")))


def codecs_of(records: bytes) -> Iterator[str]:
    """Of each batch, whole or cut short at the end."""
    rest = memoryview(records)
    while len(rest) > HEADER_BYTES:
        header = parse_header(rest)
        yield _NAMES[header.attributes & CODEC_MASK]
        rest = rest[header.size_bytes :]
