"""The first error code of an answer, of whatever API: what requests are counted by.

Where a class may hold one is found out once: an answer about thousands of partitions is walked through for every request.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable, Generator, Iterator
from functools import cache
from itertools import islice
from typing import Final

PARTS_PER_STEP: Final = 1_000
"""Parts of an answer between two steps: half a millisecond."""

_Search = Callable[[typing.Any], int]
_Codes = Callable[[typing.Any], Iterator[int]]


def first_error_of(answer: object) -> int:
    """Its own, or that of its first topic, resource, group … that has one; 0 if there is none. `answer` is a dataclass."""
    cls: type = type(answer)
    return int(_search(cls)(answer))


def first_error_in_steps(answer: object) -> Generator[None, None, int]:
    """As `first_error_of`, which is faster: iterated over to its end, it yields wherever a pause is in place."""
    cls: type = type(answer)
    codes = _codes(cls)(answer)
    while part := tuple(islice(codes, PARTS_PER_STEP)):
        if error := next(filter(None, part), 0):
            return int(error)
        yield
    return 0


@cache
def _search(cls: type) -> _Search:
    """0 where `cls` and what it is made of has no error code."""
    fields = typing.cast("tuple[dataclasses.Field[object], ...]", dataclasses.fields(cls))
    has_own = any(field.name == "error_code" for field in fields)
    arrays = [(field.name, _search(element)) for field in fields if (element := _element(field.type)) is not None and _holds_one(element)]
    own: _Search = operator.attrgetter("error_code") if has_own else _none
    if not arrays:
        return own

    def search(value: object) -> int:
        if error := own(value):
            return error
        for name, search_element in arrays:
            for element in getattr(value, name) or ():
                if error := search_element(element):
                    return error
        return 0

    return search


@cache
def _codes(cls: type) -> _Codes:
    """The codes of a value and of its parts, in their order; 0 for what has none of its own."""
    fields = typing.cast("tuple[dataclasses.Field[object], ...]", dataclasses.fields(cls))
    arrays = [(field.name, _codes(element)) for field in fields if (element := _element(field.type)) is not None and _holds_one(element)]
    own: _Search = operator.attrgetter("error_code") if any(field.name == "error_code" for field in fields) else _none

    def codes(value: object) -> Iterator[int]:
        yield own(value)
        for name, codes_of in arrays:
            for element in getattr(value, name) or ():
                yield from codes_of(element)

    return codes


@cache
def _holds_one(cls: type) -> bool:
    fields = dataclasses.fields(cls)
    return any(field.name == "error_code" for field in fields) or any(
        _holds_one(element) for field in fields if (element := _element(field.type)) is not None
    )


def _element(annotation: object) -> type | None:
    """The dataclass that an array, which may be null, is made of."""
    for member in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(member) is tuple:
            element = typing.get_args(member)[0]
            return element if isinstance(element, type) and dataclasses.is_dataclass(element) else None
    return None


def _none(_: object) -> int:
    return 0
