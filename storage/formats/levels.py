"""Which formats a cluster may write, and what becomes of bytes that this release cannot decode (docs/internals/adr/0017-a-format-gate.md).

A release reads all format levels up to its own, LEVEL_MAX, and writes at the one in force, which the cluster's record says. So a release
may bring new formats while brokers that do not know them still run; they are written once the level was raised.

A record is refused as a whole for a number, a field, an element or a name in it that is not known here: what cannot be read would be lost
when the record is written again.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import structlog

from runtime.version import forebay_version
from storage.errors import Corrupt, IncompatibleFormat, StorageError

_OF_LEVEL_1: Final = {
    "WAL object": 1,
    "manifest, index chunk, producer state": 1,
    "topic, its name by id": 1,
    "broker": 1,
    "cluster": 1,
    "store marker": 1,
    "producer ids": 1,
    "group, its topics, offset, coordinator": 1,
}
_OF_LEVEL_2: Final = _OF_LEVEL_1 | {
    "manifest, index chunk, producer state": 2,
    "segment, segment entry, compaction, compactor": 1,
}
_OF_LEVEL_3: Final = _OF_LEVEL_2 | {"manifest, index chunk, producer state": 3}
_OF_LEVEL_4: Final = _OF_LEVEL_3 | {"broker": 2}
_OF_LEVEL_5: Final = _OF_LEVEL_4 | {"WAL object": 2, "manifest, index chunk, producer state": 4, "early page": 1}
FORMATS: Final[Mapping[int, Mapping[str, int]]] = {1: _OF_LEVEL_1, 2: _OF_LEVEL_2, 3: _OF_LEVEL_3, 4: _OF_LEVEL_4, 5: _OF_LEVEL_5}
"""By level, the highest number of each format that is written at it. The SQLite file has its own check: one release opens it at a time."""
LEVEL_FIRST: Final = 1
LEVEL_OF_SEGMENTS: Final = 2
"""From which on entries are compacted: a release of level 1 finds nothing below a compaction cursor."""
LEVEL_OF_ROLES: Final = 4
"""From which on a broker may have fewer than all roles: a release of level 3 would name it for what it does not do."""
LEVEL_OF_EARLY: Final = 5
"""From which on entries may name an object that is stored later: a release of level 4 cannot read the records that have such an entry."""
LEVEL_MAX: Final = max(FORMATS)
"""The highest level that this release reads and writes."""
LOGGED_MAX: Final = 100
"""Keys of a process that are logged, each once: what a client asks again and again must not fill a disk."""
_UNKNOWN_THINGS: Final = ("Object contains unknown field", "Expected `array` of at most length", "Invalid enum value")
"""How msgspec begins when there is more in a record than its type has. tests/unit/storage/formats/test_refusal.py holds it to that."""
UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""Raised by msgspec for bytes that are no JSON of the type; the second for text that is no UTF-8."""

_logged: Final[set[str]] = set()

_log: Final = structlog.get_logger()


class KnownBy(NamedTuple):
    """A registered broker, and the highest level it knows."""

    broker_id: int
    address: str
    release: str
    level_max: int


def problem_with(level: int, *, level_max: int, release: str) -> str | None:
    """Why a broker that knows levels up to `level_max` may not run in a cluster at `level`; None if it may."""
    if level > level_max:
        return (
            f"this cluster is at format level {level}, this forebay ({release}) knows up to {level_max}: "
            "use a newer forebay, or another metadata.url. Nothing was changed"
        )
    return None


def problem_with_announced(level: int, raising_to: int | None, *, level_max: int) -> str | None:
    """Why a broker that knows levels up to `level_max` may not register in a cluster that is being raised; None if it may."""
    if raising_to is None or raising_to <= level_max:
        return None
    return (
        f"this cluster is being raised to format level {raising_to}, this forebay knows up to {level_max}: use a newer forebay, "
        f"or withdraw it with: forebay cluster upgrade --to {level}"
    )


def problem_with_raising(target: int, *, level: int, level_max: int, brokers: Sequence[KnownBy]) -> str | None:
    """Why the level may not be raised from `level` to `target` by a release that knows up to `level_max`; None if it may."""
    if target > level_max:
        return f"this forebay knows format levels up to {level_max}, not {target}: use a newer forebay"
    if target < level:
        return f"the cluster is at format level {level}, which is never lowered: what was written at it would not be read at {target}"
    behind = [broker for broker in brokers if broker.level_max < target]
    if behind:
        named = ", ".join(f"{one.broker_id} at {one.address} (release {one.release}, level {one.level_max})" for one in behind[:5])
        more = f" and {len(behind) - 5} more" if len(behind) > 5 else ""
        return f"the format level stays at {level}: not every broker knows {target}. Upgrade and restart first: {named}{more}"
    return None


class _Format(msgspec.Struct):
    fmt: int


_format_decoder: Final = msgspec.json.Decoder(_Format)


def undecodable(error: Exception, data: bytes, *, known: int, path: str) -> StorageError:
    """What to raise for `data`, which gave `error`: `IncompatibleFormat` if another release wrote it, else `Corrupt`."""
    fmt = None
    with contextlib.suppress(*UNDECODABLE):
        fmt = _format_decoder.decode(data).fmt
    if fmt is not None and (fmt > known or str(error).startswith(_UNKNOWN_THINGS)):
        return newer(fmt, known=known, path=path, cause=str(error) if fmt <= known else None)
    return Corrupt(f"undecodable record: key={path!r} cause={error}")


def newer(fmt: int, *, known: int, path: str, cause: str | None = None) -> IncompatibleFormat:
    """For a record of a number above `known`, or that has in it what `cause` says. Logged once per key."""
    release = forebay_version()
    if path not in _logged and len(_logged) < LOGGED_MAX:
        _logged.add(path)
        _log.error("newer_format", key=path, fmt=fmt, known=known, release=release, cause=cause, fix="use a newer forebay")
    more = "" if cause is None else f" cause={cause!r}"
    return IncompatibleFormat(f"written by format {fmt}, this program knows up to {known}: key={path!r} release={release!r}{more}")
