"""What a broker's memory grows by with the partitions that it knows: `python -m bench.scale.memory PARTITIONS`, a process of its own."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from bench.scale.cluster import check_appended, running
from bench.scale.loads import LOADS, ONE_LEADER, ScaleLoad, Shape
from sim.loop import VirtualLoop

MEDIUM: Final = next(load for load in LOADS if load.name == "medium")
COMMITTED_SHARE: Final = 0.1
"""The broker also commits to this share of the partitions; it has only read the others."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class KnownPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """`asked_for` are the partitions that a broker was asked to know, `kept` those that it has not forgotten for want of room."""

    asked_for: int
    kept: int
    rss_bytes: int
    """By how much the resident memory of the process grew."""
    estimated_bytes: int
    """What the broker itself counts."""


def measured_apart(partitions: int) -> KnownPartitions:
    """In a process of its own, whose memory nothing else has used."""
    arguments = [sys.executable, "-m", "bench.scale.memory", str(partitions)]
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(arguments, check=True, capture_output=True, cwd=root)
    return msgspec.json.decode(ended.stdout, type=KnownPartitions)


async def know(partitions: int, load: ScaleLoad = MEDIUM) -> KnownPartitions:
    async with running(Shape(load, ONE_LEADER, 1, partitions)) as cluster:
        await cluster.fill()
        (broker,) = cluster.brokers
        await broker.know([0])
        gc.collect()
        before = rss_bytes()
        await broker.know(range(partitions))
        for partition in range(0, partitions, round(1 / COMMITTED_SHARE)):
            broker.submit(partition, cluster.template, load.batch_records, check_appended)
        await asyncio.sleep(5.0)
        gc.collect()
        known = broker.log.partitions
        return KnownPartitions(asked_for=partitions, kept=len(known), rss_bytes=rss_bytes() - before, estimated_bytes=known.size_bytes)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def main(partitions: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(know(partitions))))


if __name__ == "__main__":
    main(int(sys.argv[1]))
