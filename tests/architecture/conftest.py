from collections.abc import Iterator

import pytest

from tests.architecture.trees import nodes_of, tree_of


@pytest.fixture(scope="package", autouse=True)
def trees_are_let_go() -> Iterator[None]:
    """A quarter of a gigabyte."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()
