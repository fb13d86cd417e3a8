"""What `kafka.validate_records: full` costs: CPU of a broker per batch, beside that of one that trusts checksums, by codec and sizes.

    python -m bench.record_reading --repeats 5 --records 1 4 16 64

Requests of one batch each, six in flight on each of four connections. `--records` adds batches of that many records to those of 16 and
960 KiB. The levels take turns, and a ratio is the median of those of each turn, for a machine that others use at the same time. Where that
is not enough, `--instructions` has valgrind count what the brokers run in user space, once and of fewer batches.
Prints a table, and JSON in its last line.
"""

import argparse
import contextlib
import json
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from bench import meter, wire
from bench.clients import create_topics
from bench.processes import HOST, Start, Target, broker, starting
from bench.stores import DISK, STORES, fresh
from storage.limits import KIB, MIB
from storage.records import compress_records

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
RECORD_BYTES: Final = (100, KIB)
BATCH_BYTES: Final = (16 * KIB, MIB - 64 * KIB)
CONNECTIONS: Final = 4
DEPTH: Final = 6
LEVELS: Final = ("crc", "full")
TOPIC: Final = "read"
READY_WITHIN_S: Final = 300.0
_TOTALS: Final = re.compile(r"^totals: (\d+)", re.MULTILINE)


class Load(NamedTuple):
    codec: int
    record_bytes: int
    records: int


class Found(NamedTuple):
    """What a batch cost, by level, and `full` in ratio to `crc`."""

    by_level: Sequence[float]
    ratio: float


def batch_of(load: Load, chance: random.Random) -> bytes:
    """Values half of which is noise, so that codecs have something to do."""
    size = load.record_bytes
    values = [(b'{"user":"%d","text":"' % chance.randrange(10**6) + chance.randbytes(size // 4).hex().encode() + b"a" * size)[:size]
              for _ in range(load.records)]  # fmt: skip
    body = bytes(compress_records(wire.records(values), load.codec))
    made = bytearray(wire.record_batch(body, load.records, now_ms=wire.now_ms()))
    struct.pack_into(">h", made, 21, load.codec)
    struct.pack_into(">I", made, 17, crc32c(made[21:]))
    return bytes(made)


class Scale(Protocol):
    """What batches are weighed with: `unit` is what `spent` says, from the start of the broker on."""

    unit: str
    batches_max: int
    batches_bytes: int

    def spent(self, target: Target) -> float: ...


class Time:
    """It is counted in hundredths of a second, so half a second is needed."""

    unit = "µs of CPU"
    batches_max = 6_000
    batches_bytes = 120 * MIB

    def spent(self, target: Target) -> float:
        return 1e6 * meter.used(target.pid).total_s


class Instructions:
    """Instructions in user space, in thousands. callgrind writes its output to `folder`."""

    unit = "1,000 instructions"
    batches_max = 480
    batches_bytes = 23 * MIB

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counted: set[int] = set()
        # A start takes minutes where it is counted.
        options = ("--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/%p", f"--log-file={folder}/log.%p")
        self.start = Start(under=("valgrind", *options), ready_within_s=READY_WITHIN_S)

    def spent(self, target: Target) -> float:
        if target.pid not in self._counted:
            self._counted.add(target.pid)
            self._control("--instr=on", target)
        # Each dump has what was run since the one before.
        self._control("--dump", target)
        dumps = [path.read_text() for path in self._folder.glob(f"{target.pid}.*")]
        return sum(int(_TOTALS.findall(dump)[-1]) for dump in dumps) / 1e3

    def _control(self, what: str, target: Target) -> None:
        subprocess.run(["callgrind_control", what, str(target.pid)], check=True, capture_output=True, timeout=READY_WITHIN_S)


def cost_per_batch(target: Target, frames: Sequence[Sequence[bytes]], scale: Scale) -> float:
    driver = wire.Driver(HOST, target.port, connections=CONNECTIONS)
    before = scale.spent(target)
    answers = driver.run(frames, depth=DEPTH)
    spent = scale.spent(target) - before
    driver.close()
    for lane in answers:
        for answer in lane:
            wire.produced_offsets(answer, TOPIC)
    return spent / sum(map(len, answers))


def measure(load: Load, targets: Sequence[Target], scale: Scale, repeats: int, chance: random.Random) -> Found:
    batch = batch_of(load, chance)
    each = min(scale.batches_max, scale.batches_bytes // (load.records * load.record_bytes)) // CONNECTIONS
    frames = [[wire.produce_request(number, TOPIC, [(lane, batch)]) for number in range(each)] for lane in range(CONNECTIONS)]
    turns = [[cost_per_batch(target, frames, scale) for target in targets] for _ in range(repeats)]
    medians = [statistics.median(level) for level in zip(*turns, strict=True)]
    return Found(medians, statistics.median(reading / trusting for trusting, reading in turns))


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    results: dict[str, Found] = {}
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
        scale: Scale = Time()
        if given.instructions:
            scale = Instructions(folder)
            closing.enter_context(starting(scale.start))
        targets = []
        for level in LEVELS:
            place = closing.enter_context(fresh(given.store, folder))
            targets.append(closing.enter_context(broker(place, {"kafka.validate_records": level})))
            create_topics(targets[-1].bootstrap, [TOPIC], CONNECTIONS)
        print(f"{given.store}\n| records | codec | crc, {scale.unit} per batch | full | ratio |\n|---|---|---|---|---|")
        for size, records in _shapes(given.records):
            for codec in [CODECS.index(name) for name in given.codecs]:
                found = measure(Load(codec, size, records), targets, scale, 1 if given.instructions else given.repeats, random.Random(1))
                trusting, reading = found.by_level
                print(f"| {records} of {size} B | {CODECS[codec]} | {trusting:.0f} | {reading:.0f} | {found.ratio:.2f} |", flush=True)
                results[f"{CODECS[codec]}-{size}-{records}"] = found
    print(json.dumps({name: [*found.by_level, found.ratio] for name, found in results.items()}))
    return 0


def _shapes(records: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes of records, and how many are in a batch."""
    few = [(size, count) for count in records for size in RECORD_BYTES]
    return few + [(size, batch_bytes // (size + 10)) for batch_bytes in BATCH_BYTES for size in RECORD_BYTES]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.record_reading")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", choices=STORES, default=DISK)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    parser.add_argument("--records", nargs="*", type=int, default=(1,), metavar="COUNT", help="records of batches that have few")
    parser.add_argument("--instructions", action="store_true", help="count them, with valgrind, instead of time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
