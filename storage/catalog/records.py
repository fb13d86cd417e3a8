"""How the catalog's records lie in the metadata store: one JSON object each, with the number of its format."""

from typing import Protocol, TypeVar

import msgspec

from storage.formats.refusal import newer, undecodable


class HasFormat(Protocol):
    @property
    def fmt(self) -> int: ...


R = TypeVar("R", bound=HasFormat)

_encoder = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record)


def decode(decoder: msgspec.json.Decoder[R], data: bytes, *, known: int, path: str) -> R:
    """Raise `IncompatibleFormat` for a format above `known`, and for what a newer release put into one of ours; `Corrupt` for anything that
    is no such record.
    """
    try:
        record = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise undecodable(error, data, known=known, path=path) from error
    if record.fmt > known:
        raise newer(record.fmt, known=known, path=path)
    return record
