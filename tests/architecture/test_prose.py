"""Docstrings are plain sentences: subject, verb, object."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.trees import nodes_of, tree_of

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("forebay", "sim", "broker", "compactor", "process", "storage", "runtime", "bench", "services", "model")
GENERATED: Final = {"wire_pb2.py"}
QUOTED: Final = re.compile(r"`[^`]*`|\.md#[\w-]+")
OPENINGS: Final = re.compile(r"(Of|Who|That of|Those|What became)\b")
PHRASES: Final = re.compile(r"\b(so many|(is|are|was|were) to be|stands|told)\b|(?<=[.;:] )[Ww]ho\b")


def docstrings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of modules, classes and functions, and those behind a constant or a field."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def faults_of(tree: ast.Module) -> list[str]:
    found = []
    for docstring in docstrings_of(tree):
        words = QUOTED.sub("", str(docstring.value))
        matches = [*filter(None, [OPENINGS.match(words)]), *PHRASES.finditer(words)]
        found += [f"line {docstring.lineno}: {match.group()}" for match in matches]
    return found


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.name not in GENERATED]


def test_docstrings_are_plain_sentences() -> None:
    found = {str(path.relative_to(ROOT)): faults_of(tree_of(path)) for path in modules()}

    assert len(found) > 400
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    "docstring",
    ["Of one partition.", "Who asks.", "Those of one topic.", "The limit. Who comes later waits.", "What is to be told.", "After so many."],
)
def test_what_is_no_plain_sentence_is_found(docstring: str) -> None:
    assert faults_of(ast.parse(f'LIMIT = 1\n"""{docstring}"""\n'))


def test_names_in_backticks_and_anchors_are_not_words() -> None:
    assert not faults_of(ast.parse('"""See `stands` and docs/internals/design/commit.md#what-clients-are-told."""\n'))
