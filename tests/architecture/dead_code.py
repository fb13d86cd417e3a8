"""Which module-level names of the packages nothing uses. Pure, but for reading the files."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.architecture.trees import nodes_of, tree_of, walked

_ENTRY_POINTS: Final = (".command(", ".callback(", ".command", ".callback")
"""Decorators that hand a function to the command line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A module by its dotted name."""

    module: str
    tree: ast.Module


def sources(root: Path, packages: Collection[str], *, generated: Collection[str] = ()) -> Iterator[Source]:
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            if path.name not in generated:
                parts = path.relative_to(root).with_suffix("").parts
                yield Source(".".join(parts[:-1] if parts[-1] == "__init__" else parts), tree_of(path))


def unused(defining: Collection[Source], using: Collection[Source]) -> set[str]:
    """`module name` of every function, class and constant of `defining` that neither its own module nor one of `using` uses.

    A use is an import of the name, an attribute of the imported module, or a mention in another statement of its own module; `__all__` and
    strings that spell a name count, since handlers and codecs are found by name. So does an attribute of a variable that nothing imported:
    it may hold a module that is loaded late. A name that is only used inside itself is not used.
    """
    used: set[tuple[str, str]] = set()
    spelt: set[str] = set()
    for source in (*defining, *using):
        _collect(source, used, spelt)
    return {
        f"{source.module} {name}"
        for source in defining
        for name, statement in _definitions(source.tree)
        if (source.module, name) not in used and name not in spelt and not name.startswith("__") and not _is_entry_point(statement)
    }


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for statement in tree.body:
        for name in _defined_by(statement):
            yield name, statement


def _defined_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _is_entry_point(statement: ast.stmt) -> bool:
    decorators = getattr(statement, "decorator_list", [])
    return any(ending in ast.unparse(one) for one in decorators for ending in _ENTRY_POINTS)


def _collect(source: Source, used: set[tuple[str, str]], spelt: set[str]) -> None:
    modules: dict[str, str] = {}
    for node in nodes_of(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                used.add((node.module, alias.name))
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
    for statement in source.tree.body:
        own = set(_defined_by(statement))
        for node in walked(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
                used.add((source.module, node.id))
            elif isinstance(node, ast.Attribute):
                of = dotted(node.value)
                used.add((modules.get(of, of), node.attr))
                if isinstance(node.value, ast.Name) and of not in modules and of not in ("self", "cls"):
                    spelt.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in own:
                spelt.update(_spelt_by(node.value))


def dotted(node: ast.expr) -> str:
    """The name `a.b.c` that an expression is, or nothing. (`ast.unparse` takes most of the time of whoever asks for all of them.)"""
    if isinstance(node, ast.Name):
        return node.id
    of = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{of}.{node.attr}" if isinstance(node, ast.Attribute) and of else ""


def _spelt_by(text: str) -> Iterator[str]:
    """Names in a string that is a name, perhaps a dotted one; texts are none."""
    names = text.replace(":", ".").split(".")
    if all(name.isidentifier() for name in names):
        yield from names
