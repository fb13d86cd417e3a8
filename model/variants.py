"""All variants of all models, under one interface."""

from functools import partial
from typing import Final, NamedTuple, Protocol

from model import collecting, leaderless, leaderless_variants, merging, pages, pages_variants, purging, restoring, upkeep_variants
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
    found += [Checked(v.name, v.about, v.expect, partial(merging.explore, v)) for v in upkeep_variants.MERGES]
    found += [Checked(v.name, v.about, v.expect, partial(collecting.explore, v)) for v in upkeep_variants.COLLECTIONS]
    found += [Checked(v.name, v.about, v.expect, partial(purging.explore, v)) for v in upkeep_variants.PURGES]
    found += [Checked(v.name, v.about, v.expect, partial(restoring.explore, v)) for v in upkeep_variants.RESTORES]
    return found


ALL: Final = {checked.name: checked for checked in _checked()}
