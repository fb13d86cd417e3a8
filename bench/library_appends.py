"""`python -m bench.library_appends`: a program that appends by the log as a library, and is metered as a broker is.

A line of standard input is a number of rounds. In a round the program appends a group to each partition. When all have landed it answers
with a line, the number of records. It ends with its input.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

import structlog

from forebay.log import Appended, Group, Log, open_log

ROUNDS_AT_ONCE: Final = 2
"""The next round is encoded while the last is being put, as a producer has requests under way."""


async def _main(given: argparse.Namespace) -> None:
    values = [os.urandom(given.record_bytes) for _ in range(given.group_records)]
    async with open_log(given.metadata, given.storage, mode="write") as log:
        await log.create_topic(given.topic, partitions=given.partitions)
        groups = [Group(given.topic, partition, values) for partition in range(given.partitions)]
        _say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(str(await _append(log, groups, int(line))))


async def _append(log: Log, groups: Sequence[Group], rounds: int) -> int:
    """Return how many records landed. Raises the `StorageError` of a group that did not."""
    left = iter(range(rounds))
    landed = 0

    async def one_after_the_other() -> None:
        nonlocal landed
        for _ in left:
            for result in await log.append(groups):
                if not isinstance(result, Appended):
                    raise result
                landed += len(groups[0].records)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(ROUNDS_AT_ONCE):
            tasks.create_task(one_after_the_other())
    return landed


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.library_appends")
    for name in ("metadata", "storage", "topic"):
        parser.add_argument(name)
    for name in ("partitions", "group_records", "record_bytes"):
        parser.add_argument(name, type=int)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_main(_parse(sys.argv[1:])))
