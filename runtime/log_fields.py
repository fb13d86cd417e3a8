"""Fields of a log line, cut to what a line may have: much of what is logged was sent by a client."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from structlog.typing import EventDict, WrappedLogger

TEXT_MAX: Final = 1_024
LONG_TEXT_MAX: Final = 16_384
NESTED_MAX: Final = 16_384
"""Characters of a field that holds others, all of them together."""
ITEMS_MAX: Final = 100
DEPTH_MAX: Final = 4
INTEGER_BITS_MAX: Final = 256

LIMITS: Final[Mapping[str, int]] = {
    "client_id": 256,
    "exception": LONG_TEXT_MAX,
    "stack": LONG_TEXT_MAX,
    "stack_info": LONG_TEXT_MAX,
    # What keeps a broker from starting: all of it, however many settings are wrong.
    "message": LONG_TEXT_MAX,
}
_SINGLE_COST: Final = 8
"""The room a value takes, beside the characters of a text."""

_MANIFESTS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OF_SEVERAL_LINES: Final = ("event", "exception", "stack", "stack_info")


def cut_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A processor: every field is text of a bounded length, a number, a truth, nothing, or a bounded container of such."""
    return {str(key): _cut(value, LIMITS.get(str(key), TEXT_MAX)) for key, value in event.items()}


def show_controls(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A processor for consoles: what a client sent neither ends a line nor moves a cursor."""
    return {key: _shown(key, value) for key, value in event.items()}


def cut_text(text: str, limit: int) -> str:
    """The first `limit` characters and how many are missing; of a traceback both ends, since its end says what happened."""
    if len(text) <= limit:
        return text
    mark = f"… {len(text) - limit} characters cut"
    if limit < LONG_TEXT_MAX:
        return text[:limit] + mark
    last = limit * 3 // 4
    return f"{text[: limit - last]}\n{mark} …\n{text[-last:]}"


def _cut(value: object, limit: int) -> object:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _Nested().cut(value, depth=0)
    return _cut_single(value, limit)


def _cut_single(value: object, limit: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # One that is very long cannot be written in decimal.
        return int(value) if value.bit_length() <= INTEGER_BITS_MAX else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no other
    if isinstance(value, bytes | bytearray | memoryview):
        kept, missing = bytes(value[:limit]), max(0, len(value) - limit)
        return str(kept) + (f"… {missing} bytes cut" if missing else "")
    return cut_text(value if isinstance(value, str) else str(value), limit)


class _Nested:
    """What a field holds, as long as there is room for it."""

    def __init__(self) -> None:
        self._left = NESTED_MAX

    def cut(self, value: object, *, depth: int) -> object:
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            cut = _cut_single(value, max(0, min(TEXT_MAX, self._left)))
            self._left -= _SINGLE_COST + (len(cut) if isinstance(cut, str) else 0)
            return cut
        if depth == DEPTH_MAX:
            return f"{len(value)} more, too deep"
        parts: list[Any] = []
        for part in value.items() if isinstance(value, Mapping) else value:
            if len(parts) == ITEMS_MAX or self._left <= 0:
                left_out = f"… {len(value) - len(parts)} more"
                parts.append((left_out, "") if isinstance(value, Mapping) else left_out)
                break
            if isinstance(value, Mapping):
                parts.append((str(self.cut(str(part[0]), depth=DEPTH_MAX)), self.cut(part[1], depth=depth + 1)))
            else:
                parts.append(self.cut(part, depth=depth + 1))
        return dict(parts) if isinstance(value, Mapping) else parts


def _shown(key: str, value: object) -> object:
    if not isinstance(value, str) or value.isprintable():
        return value
    if key in _OF_SEVERAL_LINES:
        return _MANIFESTS.sub(lambda found: repr(found.group())[1:-1], value)
    return _Quoted(value)


class _Quoted:
    """Text that a console shows as Python writes it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)
