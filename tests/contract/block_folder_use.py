"""A program that puts blocks into a folder of shared blocks, or holds a claim in one, until it is killed or done."""

import os
import signal
import sys

from runtime.clock import SystemClock
from storage.limits import KIB
from storage.objects.block_folder import BlockExtent, BlockFolder

NAME = "cluster/wal+01+OBJECT"
BLOCK_KIB = 64
BYTES_MAX = 40 * BLOCK_KIB * KIB
NOBODY = 65_534

_clock = SystemClock()


def now_s() -> float:
    return _clock.now_ms() / 1_000


def folder_at(root: str, owner: str) -> BlockFolder:
    return BlockFolder(root, bytes_max=BYTES_MAX, owner=owner, now_s=now_s)


def body_of(number: int) -> bytes:
    """The bytes of the block with this number: unlike those of any other."""
    return number.to_bytes(4, "big") * (BLOCK_KIB * KIB // 4)


def name_of(number: int) -> str:
    return f"cluster/wal+01+{number:06}"


def fill(folder: BlockFolder, owner: str, count: int) -> None:
    """Blocks one after the other, each told of when it is there."""
    for number in range(count):
        mine = int(owner) * 100_000 + number
        ended, error = folder.put(name_of(mine), 0, [memoryview(body_of(mine))])
        sys.stdout.write(f"{ended.value} {'' if error is None else error.strerror}\n")
        sys.stdout.flush()


def hold(folder: BlockFolder) -> None:
    """A claim of the first block, until this is killed."""
    look = folder.look(NAME, [BlockExtent(0, 1)], part_bytes=KIB, claims=True)
    sys.stdout.write(f"{len(look.claims)}\n")
    sys.stdout.flush()
    signal.pause()


def use_as_nobody(folder: BlockFolder) -> None:
    """What a user without rights finds, and what becomes of what he puts."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    found = folder.look(NAME, [BlockExtent(0, 4)], part_bytes=KIB, claims=True).found
    sys.stdout.write(f"{[None if one.parts is None else b''.join(one.parts) for one in found]}\n")
    missing = folder.look(NAME, [BlockExtent(0, 8)], part_bytes=KIB, claims=True)
    sys.stdout.write(f"{[one.parts for one in missing.found]} {missing.error and missing.error.strerror}\n")
    ended, error = folder.put(NAME, 4, [b"more"])
    sys.stdout.write(f"{ended.value} {error and error.strerror}\n")
    tidied = folder.tidy()
    sys.stdout.write(f"{tidied and tidied.strerror}\n")


if __name__ == "__main__":
    _, root, owner, what = sys.argv
    used = folder_at(root, owner)
    if what == "hold":
        hold(used)
    elif what == "nobody":
        use_as_nobody(used)
    else:
        fill(used, owner, int(what))
