"""How `forebay topic consume -f` writes a record: a percent format, `json` or `raw`.

    %t topic   %p partition   %o offset   %d timestamp in ms   %k key   %v value   %h headers, as a=b,c=d
    %K bytes in the key       %V bytes in the value            %H headers, counted        %% a percent sign
    %s %S %T as %v %V %d, for those who know kcat
    %k{hex} %k{base64} %v{hex} %v{base64} %d{utc}              a backslash before n, t, r, 0, x1f or another backslash

A null is written as nothing, its length as -1. Keys and values are written as the bytes they are; to a terminal, control characters in
them as `\\x1b`.
"""

import base64
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from forebay.kafka_client.text import printable_json

DEFAULT_FORMAT: Final = r"%v\n"

KCAT: Final = {"s": "v", "S": "V", "T": "d"}
"""Letters of kcat that mean what another one means here and in rpk."""

_TOKEN: Final = re.compile(r"%(?P<field>.|$)(?:\{(?P<as>[^}]*)\})?|\\(?P<escape>x[0-9a-fA-F]{2}|.|$)|(?P<text>[^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


RecordPart = Callable[[ConsumedRecord], bytes]


def as_it_is(held: bytes) -> bytes:
    return held


def record_format(text: str, *, shown: Callable[[bytes], bytes] = as_it_is) -> RecordPart:
    """`shown` is asked about what others wrote: keys, values and headers, in a percent format.

    Raise ValueError with a phrase for a format that says nothing or something unknown.
    """
    if text == "raw":
        return lambda record: record.value or b""
    if text == "json":
        return _as_json
    if not text:
        raise ValueError("is empty")
    parts = [_part(token, shown) for token in tokens(text)]
    return lambda record: b"".join(part(record) for part in parts)


def keyed(delimiter: str) -> str:
    """The format of lines with a key, the delimiter (escapes in it are understood) and a value."""
    return rf"%k{delimiter.replace('%', '%%')}%v\n"


def after_values(text: str) -> bytes | None:
    """What ends each value, of a format that writes values and nothing else; None of any other."""
    if text == "raw":
        return b""
    first, *rest = tokens(text) if text else (None,)
    if first is None or first["field"] not in {"v", "s"} or first["as"] is not None:
        return None
    ends = [literal(token) for token in rest]
    return None if None in ends else b"".join(filter(None, ends))


def _part(token: re.Match[str], shown: Callable[[bytes], bytes]) -> RecordPart:
    between = literal(token)
    if between is not None:
        return lambda _: between
    written = _field(token["field"], token["as"])
    return written if shown is as_it_is else lambda record: shown(written(record))


def tokens(text: str) -> Iterator[re.Match[str]]:
    """Fields and what is between them."""
    return _TOKEN.finditer(text)


def literal(token: re.Match[str]) -> bytes | None:
    """None for a field. Raise ValueError with a phrase for an escape that means nothing."""
    field, escape, text = token["field"], token["escape"], token["text"]
    if text is not None:
        return str(text).encode(errors="surrogateescape")
    if escape is not None:
        if escape.startswith("x") and len(escape) > 1:
            return bytes.fromhex(escape[1:])
        if escape in _ESCAPES:
            return _ESCAPES[escape]
        raise ValueError(rf"has \{escape}, which means nothing: \n \t \r \0 \\ and \x1f do")
    if field == "%":
        return b"%" + (f"{{{token['as']}}}".encode() if token["as"] is not None else b"")
    return None


def _field(field: str, written_as: str | None) -> RecordPart:
    parts = _FIELDS.get(field)
    if parts is None:
        raise ValueError(f"has %{field}, which is no field: {' '.join(f'%{name}' for name in _OWN_FIELDS)} and %% are")
    if written_as not in parts:
        known = " ".join(f"%{field}{{{name}}}" for name in parts if name is not None)
        raise ValueError(f"has %{field}{{{written_as}}}: {f'there is {known}' if known else f'%{field} is written in one way only'}")
    return parts[written_as]


def _number(of: Callable[[ConsumedRecord], int]) -> dict[str | None, RecordPart]:
    return {None: lambda record: str(of(record)).encode()}


def _bytes(of: Callable[[ConsumedRecord], bytes | None]) -> dict[str | None, RecordPart]:
    return {
        None: lambda record: of(record) or b"",
        "hex": lambda record: (of(record) or b"").hex().encode(),
        "base64": lambda record: base64.b64encode(of(record) or b""),
    }


def _length(held: bytes | None) -> int:
    return -1 if held is None else len(held)


def _utc(record: ConsumedRecord) -> bytes:
    try:
        at = datetime.fromtimestamp(record.timestamp_ms / 1_000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return str(record.timestamp_ms).encode()
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


_OWN_FIELDS: Final[dict[str, dict[str | None, RecordPart]]] = {
    "t": {None: lambda record: record.topic.encode()},
    "p": _number(lambda record: record.partition),
    "o": _number(lambda record: record.offset),
    "d": {**_number(lambda record: record.timestamp_ms), "utc": _utc},
    "k": _bytes(lambda record: record.key),
    "v": _bytes(lambda record: record.value),
    "h": {None: lambda record: b",".join(name.encode() + b"=" + (held or b"") for name, held in record.headers)},
    "K": _number(lambda record: _length(record.key)),
    "V": _number(lambda record: _length(record.value)),
    "H": _number(lambda record: len(record.headers)),
}
_FIELDS: Final = _OWN_FIELDS | {kcat: _OWN_FIELDS[ours] for kcat, ours in KCAT.items()}


def _as_json(record: ConsumedRecord) -> bytes:
    """One line, which no terminal obeys. Bytes that are no UTF-8 text are `{"base64": …}`."""
    return (
        printable_json(
            msgspec.json.encode(
                {
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    "key": _text(record.key),
                    "value": _text(record.value),
                    "headers": [{"key": name, "value": _text(held)} for name, held in record.headers],
                }
            ).decode()
        ).encode()
        + b"\n"
    )


def _text(held: bytes | None) -> Any:
    if held is None:
        return None
    try:
        return held.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(held).decode()}
