"""What ran, from the frames of a thread: places in the code and the API they serve. Nothing that a client sent is looked at."""

import re
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from broker.protocol import support

FRAMES_MAX: Final = 8
NO_API: Final = "none"
"""The label of what serves no API, or none that shows: flushes, timers, HTTP, the rest."""

_ROOT: Final = Path(__file__).parents[2].as_posix() + "/"
_OUTSIDE: Final = re.compile(r".*/(?:site-packages|python\d[.\d]*)/")
_CODEC: Final = re.compile(r"<(?:decoder|encoder) of (\w+)(?:Request|Response) \d+>")
_NAMES: Final = {api.name for api in support.APIS}
_API_OF_FILE: Final = {f"broker/handlers/{api.module}.py": api.name for api in support.APIS} | {
    "broker/handling/record_checks.py": "Produce",
    "broker/protocol/produce.py": "Produce",
    "broker/protocol/fetch.py": "Fetch",
    "broker/fetching/gathering.py": "Fetch",
}


class Seen(NamedTuple):
    api: str
    stack: tuple[str, ...]
    """Innermost first: file:line function."""


NOTHING_SEEN: Final = Seen(NO_API, ())


def seen(frame: FrameType | None) -> Seen:
    """The API of the innermost frame that has one, and the FRAMES_MAX innermost frames. Keeps no frame."""
    api = NO_API
    stack: list[str] = []
    while frame is not None:
        name = _shown(frame.f_code.co_filename)
        if len(stack) < FRAMES_MAX:
            stack.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        if api == NO_API:
            api = api_of(name)
        frame = frame.f_back
    return Seen(api, tuple(stack))


def api_of(filename: str) -> str:
    """The API whose handler or codec the file is, as `_shown` names it; NO_API for any other. One of as many as are served."""
    codec = _CODEC.fullmatch(filename)
    if codec is not None:
        return codec[1] if codec[1] in _NAMES else NO_API
    return _API_OF_FILE.get(filename, NO_API)


def _shown(filename: str) -> str:
    """From the root of the package or of the library on."""
    return _OUTSIDE.sub("", filename.removeprefix(_ROOT))
