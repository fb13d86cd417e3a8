"""What `kafka.validate_records: full` costs: CPU of a broker per batch, beside that of one that trusts checksums, by codec and sizes.

    python -m bench.record_reading --repeats 3

Requests of one batch each, six in flight on each of four connections, to files and SQLite. Prints a table, and JSON in its last line.
"""

import argparse
import contextlib
import json
import random
import statistics
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from bench import meter, wire
from bench.clients import create_topics
from bench.processes import HOST, Target, broker
from bench.stores import DISK, fresh
from storage.limits import KIB, MIB
from storage.records import compressed

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
RECORD_BYTES: Final = (100, KIB)
BATCH_BYTES: Final = (16 * KIB, MIB - 64 * KIB)
BATCHES: Final = {16 * KIB: 2_000, MIB - 64 * KIB: 120}
CONNECTIONS: Final = 4
DEPTH: Final = 6
LEVELS: Final = ("crc", "full")
TOPIC: Final = "read"


class Load(NamedTuple):
    codec: int
    record_bytes: int
    batch_bytes: int


def batch_of(load: Load, chance: random.Random) -> bytes:
    """Values half of which is noise, so that codecs have something to do."""
    size = load.record_bytes
    count = load.batch_bytes // (size + 10)
    values = [(b'{"user":"%d","text":"' % chance.randrange(10**6) + chance.randbytes(size // 4).hex().encode() + b"a" * size)[:size]
              for _ in range(count)]  # fmt: skip
    body = bytes(compressed(wire.records(values), load.codec))
    made = bytearray(wire.record_batch(body, count, now_ms=wire.now_ms()))
    struct.pack_into(">h", made, 21, load.codec)
    struct.pack_into(">I", made, 17, crc32c(made[21:]))
    return bytes(made)


def microseconds_per_batch(target: Target, frames: Sequence[Sequence[bytes]]) -> float:
    driver = wire.Driver(HOST, target.port, connections=CONNECTIONS)
    before = meter.used(target.pid)
    answers = driver.run(frames, depth=DEPTH)
    used = meter.used(target.pid) - before
    driver.close()
    for lane in answers:
        for answer in lane:
            wire.produced_offsets(answer, TOPIC)
    return 1e6 * used.total_s / sum(map(len, answers))


def measure(load: Load, targets: Sequence[Target], repeats: int, folder_chance: random.Random) -> list[float]:
    """By level; the levels take turns."""
    batch = batch_of(load, folder_chance)
    each = BATCHES[load.batch_bytes] // CONNECTIONS
    frames = [[wire.produce_request(number, TOPIC, [(lane, batch)]) for number in range(each)] for lane in range(CONNECTIONS)]
    found: list[list[float]] = [[] for _ in targets]
    for _ in range(repeats):
        for level, target in enumerate(targets):
            found[level].append(microseconds_per_batch(target, frames))
    return [statistics.median(level) for level in found]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.record_reading")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(arguments)
    results: dict[str, list[float]] = {}
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
        targets = []
        for level in LEVELS:
            place = closing.enter_context(fresh(DISK, folder))
            targets.append(closing.enter_context(broker(place, {"kafka.validate_records": level})))
            create_topics(targets[-1].bootstrap, [TOPIC], CONNECTIONS)
        print("| records | batch | codec | crc, µs of CPU per batch | full | ratio |\n|---|---|---|---|---|---|")
        for batch_bytes in BATCH_BYTES:
            for record_bytes in RECORD_BYTES:
                for codec, name in enumerate(CODECS):
                    trusting, reading = measure(Load(codec, record_bytes, batch_bytes), targets, given.repeats, random.Random(1))
                    print(
                        f"| {record_bytes} B | {batch_bytes // KIB} KiB | {name} | {trusting:.0f} | {reading:.0f} "
                        f"| {reading / trusting:.1f} |",
                        flush=True,
                    )
                    results[f"{name}-{record_bytes}-{batch_bytes}"] = [trusting, reading]
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
