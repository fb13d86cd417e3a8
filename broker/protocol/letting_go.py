"""The end of a large message, some of it at a time: dropped as a whole, its hundred thousand elements end in one turn of the event loop."""

import dataclasses
import typing
from collections.abc import Generator
from functools import cache
from typing import Final

ELEMENTS_PER_STEP: Final = 500
"""Between two steps: a quarter of a millisecond."""
SHORT: Final = 100
"""Elements of a sequence that ends at once."""


def let_go_in_steps(held: list[object]) -> Generator[None, None, None]:
    """Empty the list of messages, which nobody else holds. Iterated over to its end, it yields wherever a pause is in place."""
    left = ELEMENTS_PER_STEP
    while held:
        one = held.pop()
        if isinstance(one, tuple | list):
            if len(one) > SHORT:
                held += one
            left -= min(len(one), SHORT)
        else:
            cls: type = type(one)
            held += [getattr(one, name) for name in _arrays_of(cls)]
        del one
        left -= 1
        if left <= 0:
            left = ELEMENTS_PER_STEP
            yield


@cache
def _arrays_of(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass that are arrays, or may be."""
    if not dataclasses.is_dataclass(cls):
        return ()
    return tuple(field.name for field in dataclasses.fields(cls) if _is_array(field.type))


def _is_array(annotation: object) -> bool:
    return any(typing.get_origin(member) is tuple for member in (annotation, *typing.get_args(annotation)))
