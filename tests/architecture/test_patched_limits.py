"""Limits are values that constructors and functions take: no test rewrites a constant of a module."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.trees import nodes_of, tree_of

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("tests", "sim", "bench", "model")
CONSTANT: Final = re.compile(r"(?:.*\.)?_*[A-Z][A-Z0-9_]{2,}")
PATCHING: Final = {"setattr", "delattr", "patch", "object"}
"""`monkeypatch.setattr`, `setattr`, `mock.patch` and `patch.object`."""


def patches_in(tree: ast.Module) -> list[str]:
    """The places that set a constant of another module or class."""
    found = []
    for node in nodes_of(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args) if called in PATCHING:
                named = [one.value for one in args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                found += [f"line {node.lineno}: {name}" for name in named[:1] if CONSTANT.fullmatch(name)]
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=name) if CONSTANT.fullmatch(name):
                found.append(f"line {node.lineno}: {name}")
            case _:
                pass
    return found


def test_no_constant_is_patched() -> None:
    found = {path: patches_in(tree_of(path)) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}

    assert len(found) > 400
    patched = {str(path.relative_to(ROOT)): places for path, places in found.items() if places}
    assert patched == {}, "make it a value with a default that a constructor or a function takes, and pass another here"


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(writing, "DEADLINE_S", 0.5)',
        'patch.setattr(producing, "_QUEUED_MAX", 3)',
        'monkeypatch.setattr("process.http.probes.METADATA_DEADLINE_S", 0.02)',
        'setattr(nodes, "CONNECT_PAUSE_S", 0.0)',
        'monkeypatch.delattr(files, "_O_DIRECT")',
        'mock.patch("storage.limits.FRAME_BYTES_MAX", 1)',
        'mock.patch.object(limits, "FRAME_BYTES_MAX", 1)',
        "writing.DEADLINE_S = 0.5",
        "writing.DEADLINE_S += 0.5",
    ],
)
def test_a_patched_constant_is_found(line: str) -> None:
    assert len(patches_in(ast.parse(f"def test() -> None:\n    {line}\n"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(os, "unlink", failing)',
        'monkeypatch.setattr(module, "Clock", Stepping)',
        'monkeypatch.setenv("AWS_PROFILE", "other")',
        "limits = OxiaLimits(write_timeout_s=writing.DEADLINE_S / 2)",
        'log.warning("PATCHED")',
    ],
)
def test_what_is_no_patched_constant_is_left_alone(line: str) -> None:
    assert patches_in(ast.parse(f"def test() -> None:\n    {line}\n")) == []
