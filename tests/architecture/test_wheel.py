"""What is installed: the packages that the program imports and no others, each marked as ours (docs/internals/adr/0021)."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from forebay.imports import NAMED_IN_EACH, OUR_PACKAGES
from tests.architecture.trees import nodes_of, tree_of

ROOT: Final = Path(__file__).parents[2]
_PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL: Final = tuple(_PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
OURS: Final = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))} | {"tests"}


def imported(package: str) -> Iterator[str]:
    """The first names of what the modules of a package import."""
    for path in (ROOT / package).rglob("*.py"):
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_the_wheel_has_the_packages_that_are_looked_for_at_a_start() -> None:
    assert set(WHEEL) == {"forebay", *OUR_PACKAGES}


def test_the_program_imports_every_package_of_the_wheel_and_no_other_of_ours() -> None:
    assert {"sim", "services", "bench", "tests"} <= OURS
    assert {name for package in WHEEL for name in imported(package)} & OURS == set(WHEEL)


@pytest.mark.parametrize("package", OUR_PACKAGES)
def test_a_package_says_whose_it_is(package: str) -> None:
    assert NAMED_IN_EACH in (ROOT / package / "__init__.py").read_bytes()
