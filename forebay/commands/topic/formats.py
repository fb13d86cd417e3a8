"""Formats of records: `forebay topic consume -f` writes by them, and `forebay topic produce -f` reads lines by them.

Both know the same fields (`record_format`, `line_fields`), with letters of kcat beside those of rpk. `batch_format` writes many records at
once.
"""

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
from confluent_kafka import Message

from forebay.kafka_client.text import printable_json

DEFAULT_FORMAT: Final = r"%v\n"
KCAT: Final = {"s": "v", "S": "V", "T": "d"}
"""Letters of kcat that mean what another one means here and in rpk."""
_TOKEN: Final = re.compile(r"%(?P<field>.|$)(?:\{(?P<as>[^}]*)\})?|\\(?P<escape>x[0-9a-fA-F]{2}|.|$)|(?P<text>[^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_LINE_FIELDS: Final = "kvhpd"
_LINE_ENCODED: Final = frozenset("kv")
_NUMBER_MAX: Final = {"p": 2**31 - 1, "d": 2**63 - 1}

Headers = Sequence[tuple[str, bytes]]

BatchFormat = Callable[[Sequence[Message]], bytes]


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
    r"""What writes a record in a percent format, as `json` or as `raw`.

    %t topic   %p partition   %o offset   %d timestamp in ms   %k key   %v value   %h headers, as a=b,c=d
    %K bytes in the key       %V bytes in the value            %H headers, counted        %% a percent sign
    %s %S %T as %v %V %d, for those who know kcat
    %k{hex} %k{base64} %v{hex} %v{base64} %d{utc}              a backslash before n, t, r, 0, x1f or another backslash

    A null is written as nothing, its length as -1. Keys and values are written as the bytes they are; to a terminal, control characters in
    them as `\x1b`. `shown` is asked about what others wrote: keys, values and headers, in a percent format.

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
                    "key": _json_text(record.key),
                    "value": _json_text(record.value),
                    "headers": [{"key": name, "value": _json_text(held)} for name, held in record.headers],
                }
            ).decode()
        ).encode()
        + b"\n"
    )


def _json_text(held: bytes | None) -> Any:
    if held is None:
        return None
    try:
        return held.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(held).decode()}


class RecordLine(NamedTuple):
    """A record to be. Partition -1 is chosen by key, timestamp 0 is now."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = -1
    timestamp_ms: int = 0


class LineField(NamedTuple):
    name: str
    encoding: str | None
    end: bytes


Parse = Callable[[bytes], RecordLine]


def line_fields(text: str) -> list[LineField]:
    """The fields of a line: those that `consume -f` writes, and what is between them.

    %k key   %v value   %h headers, as a=b,c=d   %p partition   %d timestamp in ms
    %k{hex} %k{base64} %v{hex} %v{base64}        %s and %T as %v and %d, for those who know kcat

    A field ends where the text behind it is found first; the last one takes the rest of the line.

    Raise ValueError with a phrase for a format that no line can be read by.
    """
    fields: list[LineField] = []
    begin = b""
    for token in tokens(text):
        between = literal(token)
        if between is not None:
            if fields:
                fields[-1] = fields[-1]._replace(end=fields[-1].end + between)
            else:
                begin += between
            continue
        if fields and not fields[-1].end:
            raise ValueError(f"has nothing between %{fields[-1].name} and %{token['field']}: nobody could tell where one ends")
        fields.append(_line_field(token["field"], token["as"]))
    if not fields:
        raise ValueError(r"has no field: write for example %k:%v\n")
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"has %{twice} twice")
    if begin:
        raise ValueError("begins with text: a line begins with a field")
    # A line is a record: what ends it was taken away already.
    fields[-1] = fields[-1]._replace(end=fields[-1].end.removesuffix(b"\n"))
    if any(b"\n" in field.end for field in fields):
        raise ValueError(r"has \n before its end: each line is a record")
    return fields


def line_parse(fields: Sequence[LineField], rest: RecordLine, *, empty_is_null: bool = False) -> Parse:
    """`rest` has what lines do not say; its headers come before theirs. The function raises ValueError with a phrase about a line."""
    last = len(fields) - 1

    def parsed(line: bytes) -> RecordLine:
        parts: dict[str, bytes] = {}
        begin = 0
        for number, field in enumerate(fields):
            if number == last:
                if not line.endswith(field.end) or len(line) - len(field.end) < begin:
                    raise ValueError(f'does not end with "{_shown_part(field.end)}"')
                end = len(line) - len(field.end)
            else:
                end = line.find(field.end, begin)
                if end < 0:
                    raise ValueError(f'has no "{_shown_part(field.end)}" behind %{field.name}')
            parts[field.name] = _decoded(field, line[begin:end])
            begin = end + len(field.end)
        key, value = parts.get("k", rest.key), parts.get("v", rest.value)
        return RecordLine(
            None if empty_is_null and not value else value,
            None if empty_is_null and not key else key,
            [*rest.headers, *_line_headers(parts["h"])] if "h" in parts else rest.headers,
            _line_number("p", parts["p"]) if "p" in parts else rest.partition,
            _line_number("d", parts["d"]) if "d" in parts else rest.timestamp_ms,
        )

    return parsed


def _line_field(name: str, encoding: str | None) -> LineField:
    name = KCAT.get(name, name)
    if name not in _LINE_FIELDS or not name:
        raise ValueError(f"has %{name}, which no line can give: {' '.join(f'%{known}' for known in _LINE_FIELDS)} can")
    if encoding is not None and not (name in _LINE_ENCODED and encoding in {"hex", "base64"}):
        raise ValueError(f"has %{name}{{{encoding}}}: there is %k{{hex}} %k{{base64}} %v{{hex}} %v{{base64}}")
    return LineField(name, encoding, b"")


def _decoded(field: LineField, part: bytes) -> bytes:
    if field.encoding is None:
        return part
    try:
        return bytes.fromhex(part.decode()) if field.encoding == "hex" else base64.b64decode(part, validate=True)
    except ValueError as error:
        raise ValueError(f'has "{_shown_part(part)}" as %{field.name}{{{field.encoding}}}, which it is not') from error


def _line_headers(part: bytes) -> list[tuple[str, bytes]]:
    found = []
    for one in part.split(b",") if part else ():
        name, separator, value = one.partition(b"=")
        if not separator or not name:
            raise ValueError(f'has "{_shown_part(one)}" among its headers: write a=b,c=d')
        try:
            found.append((name.decode(), value))
        except UnicodeDecodeError as error:
            raise ValueError(f'has "{_shown_part(name)}" as name of a header, which is not UTF-8 text') from error
    return found


def _line_number(name: str, part: bytes) -> int:
    if not re.fullmatch(rb"\d{1,19}", part) or int(part) > _NUMBER_MAX[name]:
        raise ValueError(f'has "{_shown_part(part)}" as %{name}, which is no number for it')
    return int(part)


def _shown_part(part: bytes) -> str:
    text = part.decode(errors="backslashreplace")
    return text if len(text) <= 40 else f"{text[:40]}…"


def batch_format(text: str, *, shown: Callable[[bytes], bytes] = as_it_is) -> BatchFormat:
    """As `record_format`, also in what it raises. Values alone are written without a look at the other parts of their records."""
    one = record_format(text, shown=shown)
    end = after_values(text) if shown is as_it_is else None
    if end is None:
        return lambda messages: b"".join([one(record_of(message)) for message in messages])
    # The empty value behind the last one has the last end written, too.
    return lambda messages: end.join([*_values(messages), b""])


def _values(messages: Sequence[Message]) -> Sequence[bytes]:
    values = list(map(Message.value, messages))
    return values if all(values) else [value or b"" for value in values]  # type: ignore[return-value]


def record_of(message: Message) -> ConsumedRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record has a topic"
    assert partition is not None, "a record has a partition"
    assert offset is not None, "a record has an offset"
    headers: Sequence[tuple[str, str | bytes | None]] = message.headers() or ()  # type: ignore[assignment]
    return ConsumedRecord(
        topic,
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple((name, held.encode() if isinstance(held, str) else held) for name, held in headers) if headers else (),
    )
