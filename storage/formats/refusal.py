"""Bytes that cannot be decoded: damaged, or of a release that this one does not know (docs/adr/0017-a-format-gate.md).

A record is refused as a whole for a number, a field, an element or a name in it that is not known here: what cannot be read would be lost
when the record is written again.
"""

import contextlib
from typing import Final

import msgspec
import structlog

from runtime.version import forebay_version
from storage.errors import Corrupt, IncompatibleFormat, StorageError

LOGGED_MAX: Final = 100
"""Keys of a process that are logged, each once: what a client asks again and again must not fill a disk."""
_UNKNOWN_THINGS: Final = ("Object contains unknown field", "Expected `array` of at most length", "Invalid enum value")
"""How msgspec begins when there is more in a record than its type has. tests/unit/storage/formats/test_refusal.py holds it to that."""

_log: Final = structlog.get_logger()
_logged: Final[set[str]] = set()


UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""Raised by msgspec for bytes that are no JSON of the type; the second for text that is no UTF-8."""


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
