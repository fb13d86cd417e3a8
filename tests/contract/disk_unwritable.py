"""A program without the rights of root that opens and probes a disk store on a folder it may not write to, and prints what it is told."""

import asyncio
import os
import sys
from pathlib import Path

from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.objects.disk import DiskObjectStore

NOBODY = 65_534


async def main(root: Path) -> None:
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        await DiskObjectStore.open(root, blocking=InlineBlocking(), clock=SystemClock())
    except Unavailable as error:
        sys.stdout.write(f"{error}\n")
    try:
        await DiskObjectStore(root, blocking=InlineBlocking(), clock=SystemClock()).probe()
    except Unavailable as error:
        sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
