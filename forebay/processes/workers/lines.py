"""The words of a worker, cut into lines that say whose they are. Lines of a log in JSON get a field, others a prefix."""

import json
from typing import Final

LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is passed on in parts."""


class LineCutter:
    """Bytes as they come → whole lines without their ends."""

    def __init__(self, *, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[str]:
        self._begun += data
        *whole, rest = bytes(self._begun).split(b"\n")
        while len(rest) > self._bytes_max:
            whole.append(rest[: self._bytes_max])
            rest = rest[self._bytes_max :]
        self._begun[:] = rest
        return [line.decode(errors="replace") for line in whole]

    def rest(self) -> list[str]:
        """The last line, if it was never ended."""
        rest = bytes(self._begun)
        self._begun.clear()
        return [rest.decode(errors="replace")] if rest else []


def attribute_line(line: str, *, log_format: str, **whose: int | str) -> str:
    """The line as the supervisor prints it. `whose`: the kind of process, and its number or name."""
    ((kind, name),) = whose.items()
    if log_format != "json":
        return f"{kind} {name}  {line}"
    if line.startswith('{"') and _is_json(line):
        return f'{{"{kind}": {json.dumps(name)}, {line[1:]}'
    return json.dumps({kind: name, "event": f"{kind}_said", "line": line}, ensure_ascii=False)


def _is_json(line: str) -> bool:
    """It may be the end of a line, the beginning of which was lost with its worker."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
