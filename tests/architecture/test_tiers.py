"""What a tier of tests may do: unit and property tests start nothing, and tiers share by tests/kit alone."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.trees import nodes_of, tree_of

TESTS: Final = Path(__file__).parents[1]
TIERS: Final = ("unit", "property", "contract", "model", "architecture", "simulation", "integration", "compat", "chaos", "spark")
STARTING: Final = ("subprocess", "services", "multiprocessing")
SPAWNING: Final = {"create_subprocess_exec", "create_subprocess_shell", "Popen", "system", "spawnv"}


def modules_of(tier: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((TESTS / tier).rglob("*.py")):
        yield path, tree_of(path)


def imports_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def starters_in(tree: ast.Module) -> set[str]:
    """What it starts processes or servers with."""
    imported = {name for name in imports_of(tree) if name.partition(".")[0] in STARTING}
    return imported | {node.attr for node in nodes_of(tree) if isinstance(node, ast.Attribute) and node.attr in SPAWNING}


@pytest.mark.parametrize("tier", ["unit", "property"])
def test_quick_tiers_start_no_process_and_no_server(tier: str) -> None:
    found = {str(path.relative_to(TESTS)): starters_in(tree) for path, tree in modules_of(tier)}

    assert len(found) > 3
    assert {name: starters for name, starters in found.items() if starters} == {}


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_imports_from_itself_and_from_the_kit(tier: str) -> None:
    allowed = (f"tests.{tier}", "tests.kit")
    found = {
        str(path.relative_to(TESTS)): sorted(
            name for name in imports_of(tree) if name.startswith("tests.") and not name.startswith(allowed)
        )
        for path, tree in modules_of(tier)
    }

    assert found
    assert {name: others for name, others in found.items() if others} == {}


def test_the_kit_imports_from_no_tier() -> None:
    found = {
        path.name: sorted(name for name in imports_of(tree) if name.startswith("tests.") and not name.startswith("tests.kit"))
        for path, tree in modules_of("kit")
    }

    assert len(found) > 3
    assert {name: others for name, others in found.items() if others} == {}


@pytest.mark.parametrize("source", ["import subprocess", "from services.oxia import running_oxia", "asyncio.create_subprocess_exec('x')"])
def test_what_starts_something_is_found(source: str) -> None:
    assert starters_in(ast.parse(source))
