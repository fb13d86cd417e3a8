"""What ran, from the frames of a thread: places in the code and the API they serve. Nothing that a client sent is looked at."""

import re
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

FRAMES_MAX: Final = 8
NO_API: Final = "none"
"""The label of what serves no API, or none that shows: flushes, timers, HTTP, the rest."""

_ROOT: Final = Path(__file__).parents[2].as_posix() + "/"
_OUTSIDE: Final = re.compile(r".*/(?:site-packages|python\d[.\d]*)/")

ApiOfFile = Callable[[str], str | None]
"""A file, named from the root of the repository or of its library on → the API it serves, one of a bounded number; None: it serves none."""


class SampledStack(NamedTuple):
    api: str
    stack: tuple[str, ...]
    """Innermost first: file:line function."""


NOTHING_SEEN: Final = SampledStack(NO_API, ())


def seen(frame: FrameType | None, api_of_file: ApiOfFile) -> SampledStack:
    """The API of the innermost frame that has one, and the FRAMES_MAX innermost frames. Keeps no frame.

    The thread goes on meanwhile: on a busy machine CPython 3.11 has given something else as the frame behind one that had ended.
    """
    api: str | None = None
    stack: list[str] = []
    while isinstance(frame, FrameType):
        name = _shown(frame.f_code.co_filename)
        if len(stack) < FRAMES_MAX:
            stack.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        api = api or api_of_file(name)
        frame = frame.f_back
    return SampledStack(api or NO_API, tuple(stack))


def _shown(filename: str) -> str:
    """From the root of the package or of the library on."""
    return _OUTSIDE.sub("", filename.removeprefix(_ROOT))
