"""All variants of both models, under one interface."""

from functools import partial
from typing import Final, NamedTuple, Protocol

from model import leaderless, leaderless_variants, pages, pages_variants
from model.search import Result


class Explore(Protocol):
    def __call__(self, *, states_max: int) -> Result: ...


class Checked(NamedTuple):
    """`expect`: the verdict that `explore` is to end with. `about` says what is in the variant, or what breaks it."""

    name: str
    about: str
    expect: str
    explore: Explore


def _checked() -> list[Checked]:
    found = [Checked(v.name, v.about, v.expect, partial(leaderless.explore, v)) for v in leaderless_variants.VARIANTS]
    found += [Checked(v.name, v.about, v.expect, partial(pages.explore, v)) for v in pages_variants.VARIANTS]
    return found


ALL: Final = {checked.name: checked for checked in _checked()}
