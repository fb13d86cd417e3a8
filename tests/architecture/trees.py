"""Syntax trees of the project's modules, parsed once for all tests of this folder, which one worker runs (tests/kit/workers.py)."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Not to be changed: others read it too."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes in the order of `ast.walk`, which takes three times as long and is asked for most trees six times."""
    return tuple(walked(tree))


def walked(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, breadth first."""
    nodes = [node]
    for one in nodes:  # while it grows
        for value in vars(one).values():
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif type(value) is list:
                nodes += [element for element in value if isinstance(element, ast.AST)]
    return nodes
