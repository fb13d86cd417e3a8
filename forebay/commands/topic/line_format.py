"""How `forebay topic produce -f` reads a line: the fields that `consume -f` writes, and what is between them.

    %k key   %v value   %h headers, as a=b,c=d   %p partition   %d timestamp in ms
    %k{hex} %k{base64} %v{hex} %v{base64}        %s and %T as %v and %d, for those who know kcat

A field ends where the text behind it is found first; the last one takes the rest of the line.
"""

import base64
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from forebay.commands.topic.record_format import KCAT, literal, tokens

Headers = Sequence[tuple[str, bytes]]

_FIELDS: Final = "kvhpd"
_ENCODED: Final = frozenset("kv")
_NUMBER_MAX: Final = {"p": 2**31 - 1, "d": 2**63 - 1}


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
    """Raise ValueError with a phrase for a format that no line can be read by."""
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
        fields.append(_field(token["field"], token["as"]))
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
                    raise ValueError(f'does not end with "{_shown(field.end)}"')
                end = len(line) - len(field.end)
            else:
                end = line.find(field.end, begin)
                if end < 0:
                    raise ValueError(f'has no "{_shown(field.end)}" behind %{field.name}')
            parts[field.name] = _decoded(field, line[begin:end])
            begin = end + len(field.end)
        key, value = parts.get("k", rest.key), parts.get("v", rest.value)
        return RecordLine(
            None if empty_is_null and not value else value,
            None if empty_is_null and not key else key,
            [*rest.headers, *_headers(parts["h"])] if "h" in parts else rest.headers,
            _number("p", parts["p"]) if "p" in parts else rest.partition,
            _number("d", parts["d"]) if "d" in parts else rest.timestamp_ms,
        )

    return parsed


def _field(name: str, encoding: str | None) -> LineField:
    name = KCAT.get(name, name)
    if name not in _FIELDS or not name:
        raise ValueError(f"has %{name}, which no line can give: {' '.join(f'%{known}' for known in _FIELDS)} can")
    if encoding is not None and not (name in _ENCODED and encoding in {"hex", "base64"}):
        raise ValueError(f"has %{name}{{{encoding}}}: there is %k{{hex}} %k{{base64}} %v{{hex}} %v{{base64}}")
    return LineField(name, encoding, b"")


def _decoded(field: LineField, part: bytes) -> bytes:
    if field.encoding is None:
        return part
    try:
        return bytes.fromhex(part.decode()) if field.encoding == "hex" else base64.b64decode(part, validate=True)
    except ValueError as error:
        raise ValueError(f'has "{_shown(part)}" as %{field.name}{{{field.encoding}}}, which it is not') from error


def _headers(part: bytes) -> list[tuple[str, bytes]]:
    found = []
    for one in part.split(b",") if part else ():
        name, separator, value = one.partition(b"=")
        if not separator or not name:
            raise ValueError(f'has "{_shown(one)}" among its headers: write a=b,c=d')
        try:
            found.append((name.decode(), value))
        except UnicodeDecodeError as error:
            raise ValueError(f'has "{_shown(name)}" as name of a header, which is not UTF-8 text') from error
    return found


def _number(name: str, part: bytes) -> int:
    if not re.fullmatch(rb"\d{1,19}", part) or int(part) > _NUMBER_MAX[name]:
        raise ValueError(f'has "{_shown(part)}" as %{name}, which is no number for it')
    return int(part)


def _shown(part: bytes) -> str:
    text = part.decode(errors="backslashreplace")
    return text if len(text) <= 40 else f"{text[:40]}…"
