"""The first error code of an answer, of whatever API: what requests are counted by.

Where a class may hold one is found out once: an answer about thousands of partitions is walked through for every request.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable
from functools import cache

_Search = Callable[[typing.Any], int]


def first_error_of(answer: object) -> int:
    """Its own, or that of its first topic, resource, group … that has one; 0 if there is none. `answer` is a dataclass."""
    cls: type = type(answer)
    return int(_search(cls)(answer))


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
