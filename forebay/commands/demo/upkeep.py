"""What upkeep makes of the demo's objects: `forebay compactor run-once` over its topic, as an operator would run it."""

import json
import os
import subprocess
import sys
from typing import Final, NamedTuple

from forebay.commands.demo.replay import ReplayError
from forebay.commands.demo.stores import DemoStores
from forebay.processes.workers.plan import environment

WITHIN_S: Final = 300.0


class Compacted(NamedTuple):
    """So many `objects` were read with `gets`; `segments` were written, each with one PUT at this size."""

    objects: int
    segments: int
    gets: int
    written_bytes: int
    seconds: float


def compact(stores: DemoStores, topic: str) -> Compacted:
    """All of `topic` becomes segments, however little it is. Raise `ReplayError` with the command's own words if that fails."""
    command = [sys.executable, "-m", "forebay", "compactor", "run-once", topic, "--now", "-o", "json", "--config", os.devnull]
    for assignment in stores.assignments:
        command += ["--set", assignment]
    try:
        ended = subprocess.run(  # noqa: S603 - our own command line
            command, check=False, capture_output=True, text=True, timeout=WITHIN_S, env=environment(os.environ), stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise ReplayError(f"the compactor did not end within {WITHIN_S:.0f} s") from None
    if ended.returncode:
        raise ReplayError(f"the compactor failed with exit code {ended.returncode}: {ended.stderr.strip() or ended.stdout.strip()}")
    said = json.loads(ended.stdout)
    return Compacted(said["objects"], said["segments"], said["gets"], said["written_bytes"], said["seconds"])
