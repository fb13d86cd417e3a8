"""How the catalog's records lie in the metadata store: one JSON object each, with the number of its format."""

import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from storage.errors import Corrupt, IncompatibleFormat


class HasFormat(Protocol):
    @property
    def fmt(self) -> int: ...


class _Format(msgspec.Struct):
    fmt: int


R = TypeVar("R", bound=HasFormat)

_encoder = msgspec.json.Encoder()
_format_decoder = msgspec.json.Decoder(_Format)


def encode(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record)


def newer(fmt: int, known: int, path: str) -> str:
    return f"written by format {fmt}, this program knows up to {known}: key={path!r}"


def decode(
    decoder: msgspec.json.Decoder[R],
    data: bytes,
    *,
    known: int,
    path: str,
    describe_newer: Callable[[int, int, str], str] = newer,
) -> R:
    """Raise `IncompatibleFormat` for a format above `known`, and `Corrupt` for anything that is no such record."""
    try:
        record = decoder.decode(data)
        fmt = record.fmt
    except msgspec.MsgspecError as error:
        # A newer format need not fit the struct: ask for its number before calling it corrupt.
        with contextlib.suppress(msgspec.MsgspecError):
            if (fmt := _format_decoder.decode(data).fmt) > known:
                raise IncompatibleFormat(describe_newer(fmt, known, path)) from error
        raise Corrupt(f"undecodable record: key={path!r} cause={error}") from error
    if fmt > known:
        raise IncompatibleFormat(describe_newer(fmt, known, path))
    return record
