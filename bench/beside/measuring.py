"""A load on a target: `forebay bench` in a process of its own, what the broker spends meanwhile, and what it asks of S3."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import prices
from bench.beside.loads import BesideLoad, filling_words, load_words, warm_up_times
from bench.beside.report import RunReport
from bench.beside.targets import OpenTarget
from bench.readings import CONFLICTS
from bench.units import MIB

LOAD_WITHIN_S: Final = 600.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_SAID_LINES: Final = 3

_names = itertools.count()


class LoadFailed(Exception):
    """A load came to no result. `str()` is what it said."""


def warm(load: BesideLoad, target: OpenTarget, scale: float) -> None:
    """Raise `LoadFailed`."""
    with _topic(load, target, scale * warm_up_times(target.name)) as words:
        _bench(target, words)


def measure(load: BesideLoad, target: OpenTarget, scale: float, round_index: int) -> RunReport:
    """Raise `LoadFailed`."""
    with _topic(load, target, scale) as words:
        before = target.counters() if target.is_counted else {}
        used_s = target.cpu_s()
        raw = _bench(target, words)
        cpu_s = target.cpu_s() - used_s
        dollars = conflicts = None
        if target.is_counted:
            after = target.counters()
            conflicts = after.get(CONFLICTS, 0.0) - before.get(CONFLICTS, 0.0)
            if target.is_billed:
                asked, now = prices.requests(before), prices.requests(after)
                dollars = prices.dollars({op: now[op] - asked[op] for op in now})
    return RunReport(
        round=round_index,
        cpu_s=round(cpu_s, 3),
        dollars=dollars,
        raw=raw,
        conflicts=conflicts,
        peak_rss_mib=round(target.peak_rss_bytes() / MIB, 1),
    )


@contextlib.contextmanager
def _topic(load: BesideLoad, target: OpenTarget, scale: float) -> Iterator[list[str]]:
    """The words of the load, with a topic to read if it reads one."""
    words = load_words(load, target.name, scale)
    if not load.reads:
        yield words
        return
    topic = f"beside-{next(_names)}"
    _bench(target, [*filling_words(load, target.name, scale), "--topic", topic])
    yield [*words, "--topic", topic]
    _forebay(target, ["topic", "delete", topic, "--yes"])


def _bench(target: OpenTarget, words: Sequence[str]) -> dict[str, Any]:
    said = _forebay(target, ["bench", *words, "--json"])
    try:
        found: dict[str, Any] = json.loads(said)
    except json.JSONDecodeError as error:
        raise LoadFailed(f"no JSON: {said[:200]!r}") from error
    return found


def _forebay(target: OpenTarget, words: Sequence[str]) -> str:
    command = [sys.executable, "-m", "forebay", *words, "--quiet", "--bootstrap", target.bootstrap]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    try:
        ended = subprocess.run(
            command,
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOAD_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"not done within {LOAD_WITHIN_S:g} s") from error
    if ended.returncode != 0:
        said = " ".join(ended.stderr.strip().splitlines()[-_SAID_LINES:])
        raise LoadFailed(f"`forebay {words[0]} {words[1]}` ended with {ended.returncode}: {said or 'it said nothing'}")
    return ended.stdout
