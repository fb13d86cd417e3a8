from dataclasses import dataclass

import pytest
from kio.index import load_response_schema

from broker.protocol.apis import APIS, Api
from broker.protocol.codec import SEARCHED_PER_STEP, first_error_in_steps, first_error_of
from broker.protocol.compiler import at_once, describe


@dataclass(slots=True)
class Part:
    error_code: int


@dataclass(slots=True)
class Group:
    name: str
    parts: tuple[Part, ...] | None


@dataclass(slots=True)
class Whole:
    error_code: int
    numbers: tuple[int, ...]
    groups: tuple[Group, ...]


def whole(own: int, *codes: int) -> Whole:
    return Whole(own, (7, 8), (Group("first", ()), Group("second", tuple(map(Part, codes)))))


@pytest.mark.parametrize(("codes", "first"), [((0, 0, 0), 0), ((0, 0, 36, 17), 36), ((41, 36), 41)])
def test_the_first_error_of_an_answer_is_its_own_or_that_of_its_first_part_that_has_one(codes: tuple[int, ...], first: int) -> None:
    assert first_error_of(whole(*codes)) == first


def test_an_array_that_is_null_has_no_error() -> None:
    assert first_error_of(Whole(0, (), (Group("null", None), Group("one", (Part(3),))))) == 3


def test_an_answer_that_cannot_have_an_error_has_none() -> None:
    @dataclass(slots=True)
    class Names:
        names: tuple[str, ...]

    assert first_error_of(Names(("a",))) == 0


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_answers_of_every_api_can_be_searched(api: Api) -> None:
    values = describe(load_response_schema(api.key, api.maximum))
    empty = values.cls(**{field.name: field.absent for field in values.fields})

    assert first_error_of(empty) == 0


def test_a_large_answer_is_searched_in_steps_for_the_same_error() -> None:
    codes = [0] * (3 * SEARCHED_PER_STEP) + [36]

    assert len(list(first_error_in_steps(whole(0, *codes)))) == 3
    assert at_once(first_error_in_steps(whole(0, *codes))) == 36  # type: ignore[arg-type]
    assert at_once(first_error_in_steps(whole(0, *codes[:-1]))) == 0  # type: ignore[arg-type]
