"""A name means one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.architecture.trees import nodes_of, tree_of

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("forebay", "sim", "broker", "compactor", "process", "storage", "runtime", "spark")
GENERATED: Final = {"wire_pb2.py"}
PUBLISHED: Final = {"forebay/log.py", "storage/record_values.py"}
"""What programs of others import by these names (docs/internals/adr/0030-two-modules-for-others.md): they see none of ours beside them."""


def types_of(module: ast.Module) -> Iterator[str]:
    """Public classes, however deep, and public aliases of types."""
    for node in nodes_of(module):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[0].isupper() and not name.isupper():
                    yield name


def test_a_public_type_has_a_name_of_its_own() -> None:
    homes = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name not in GENERATED and str(path.relative_to(ROOT)) not in PUBLISHED:
                for name in types_of(tree_of(path)):
                    homes[name].append(str(path.relative_to(ROOT)))

    assert len(homes) > 500
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
