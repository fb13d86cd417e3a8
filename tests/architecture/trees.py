"""Syntax trees of the project's modules, parsed once for all tests of this folder, which one worker runs (tests/kit/workers.py)."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Not to be changed: others read it too."""
    return ast.parse(path.read_text(encoding="utf-8"))
