"""Read at once or in a thread, compressed again or not: what one connection sends to a partition is stored in the order of its coming."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from kio.schema.errors import ErrorCode

from broker.handling.validation import READ_AT_ONCE_BYTES_MAX
from tests.kit.record_batches import batch_of_records, record, record_batch
from tests.unit.broker.handlers.logged import node
from tests.unit.broker.handling.test_recompression import Source, send

T = TypeVar("T")
TOPICS: dict[str, dict[str, str]] = {"plain": {}, "compacted": {"cleanup_policy": "compact"}, "packed": {"compression_type": "zstd"}}
PARTITIONS = 2
CONNECTIONS = 2
REQUESTS = 40


class Chance:
    """Work takes none to five turns of the loop."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def run(self, call: Callable[[], T]) -> T:
        for _ in range(self._chance.randrange(6)):
            await asyncio.sleep(0)
        return call()

    def close(self) -> None:
        pass


def batch(chance: random.Random, kind: str, **header: Any) -> bytearray:
    codec = chance.choice([0, 3, 4])
    if kind == "bad":
        return batch_of_records(record(b"v", offset_delta=7, key=b"k"), 1, codec=codec, **header)
    value = b"x" * READ_AT_ONCE_BYTES_MAX if kind == "long" else b"x"
    return record_batch(value, keys=[b"k"], codec=codec, **header)


@pytest.mark.parametrize("is_idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("reads_records", [False, True], ids=["crc", "full"])
@pytest.mark.parametrize("seed", range(4))
async def test_batches_keep_the_order_of_their_connection(seed: int, reads_records: bool, is_idempotent: bool) -> None:
    chance = random.Random(seed)
    async with node(is_deaf=True, reads_records=reads_records, blocking=Chance(chance)) as broker:
        for name, configs in TOPICS.items():
            await broker.create(name, partition_count=PARTITIONS, **configs)
        sources = [Source() for _ in range(CONNECTIONS)]
        sequences: defaultdict[tuple[int, str, int], int] = defaultdict(int)
        sent = []
        for _ in range(REQUESTS):
            which = chance.randrange(CONNECTIONS)
            named = []
            for _ in range(chance.randrange(1, 6)):
                topic, partition = chance.choice(list(TOPICS)), chance.randrange(PARTITIONS)
                reads = topic == "compacted" or reads_records
                kind = chance.choice(["short", "long", "bad"] if reads and not is_idempotent else ["short", "long"])
                header: dict[str, Any] = {}
                if is_idempotent:
                    at = which, topic, partition
                    header = {"producer_id": 7 + which, "producer_epoch": 0, "base_sequence": sequences[at]}
                    sequences[at] += 1
                named.append((topic, partition, kind, batch(chance, kind, **header)))
            answer = send(broker, *((topic, partition, data) for topic, partition, _, data in named), source=sources[which])
            sent.append((which, named, answer))
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)

        offsets: defaultdict[tuple[int, str, int], list[int]] = defaultdict(list)
        async with asyncio.timeout(30):
            for which, named, answer in sent:
                for (topic, partition, kind, _), result in zip(named, await answer, strict=True):
                    assert result.error_code == (ErrorCode.invalid_record if kind == "bad" else 0)
                    if kind != "bad":
                        offsets[which, topic, partition].append(result.base_offset)
    for found in offsets.values():
        assert found == sorted(set(found))
    for name in TOPICS:
        for partition in range(PARTITIONS):
            found = sorted(offset for (_, *at), those in offsets.items() if at == [name, partition] for offset in those)
            assert found == list(range(len(found))), "nothing twice, nothing lost"
    assert not broker.produce._recompression.lines
    assert broker.produce._recompression.results_bytes == 0
