"""Append to a log, read it back and compact it, in this process: no broker, no socket, no server.

    python examples/log_library.py                                    # in a temporary folder
    python examples/log_library.py sqlite:///data/meta.db file://./data/objects
    python examples/log_library.py oxia://localhost:6648/default 's3://bucket/prefix?endpoint=http://localhost:9000&path_style=true'

Brokers of the same stores serve what it appends to any Kafka client, and it reads what they append.
"""

import asyncio
import logging
import sys
import tempfile

import structlog

from forebay.log import Appended, Group, Record, open_log
from storage.errors import AlreadyExists

TOPIC = "orders-library"
ORDERS = 10


async def main(metadata_url: str, storage_url: str) -> None:
    async with open_log(metadata_url, storage_url) as log:
        try:
            await log.create_topic(TOPIC, partitions=2)
        except AlreadyExists:
            print(f"{TOPIC} is there")

        # Two groups are two batches: each is appended as a whole, at consecutive offsets, or not at all.
        orders = [Record(b'{"amount": %d}' % (10 * number), key=b"order-%d" % number) for number in range(ORDERS)]
        producer = await log.new_producer()
        groups = [Group(TOPIC, 0, orders[::2], sequence=0), Group(TOPIC, 1, orders[1::2], sequence=0)]
        first = await log.append(groups, producer)
        for group, result in zip(groups, first, strict=True):
            print(f"appended {group.topic}[{group.partition}] {result}")

        # A program that never heard the answer appends again: it happens once.
        again = await log.append(groups, producer)
        print(f"again: {[isinstance(result, Appended) and result.is_duplicate for result in again]}")

        for partition in (0, 1):
            entries = await log.compact_once(TOPIC, partition)
            print(f"compacted {TOPIC}[{partition}] entries={entries}")
        for partition, result in enumerate(first):
            if isinstance(result, Appended):
                async for record in log.iter_from(TOPIC, partition, result.start_offset):
                    print(f"read {TOPIC}[{partition}]@{record.offset} {(record.key or b'').decode()} {(record.value or b'').decode()}")

        end = await log.fence(TOPIC, 0)
        (refused,) = await log.append([Group(TOPIC, 0, [b"too late"])])
        print(f"fenced at {end}: {type(refused).__name__}")
        await log.unfence(TOPIC, 0)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if len(sys.argv) == 3:
        asyncio.run(main(sys.argv[1], sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(f"sqlite:///{folder}/meta.db", f"file://{folder}/objects"))
