"""Settings that nothing reads, and metrics that nothing binds or counts. Pure."""

import ast
from collections.abc import Collection, Iterable, Iterator

from tests.architecture.dead_code import Source
from tests.architecture.trees import nodes_of

_BINDING = ("counter", "gauge", "histogram", "table")


def unread(keys: Collection[str], using: Iterable[Source]) -> set[str]:
    """Those of `keys` (`section.name`) that no module reads as `name` of something called `section`."""
    read = {
        f"{_keeper(node.value)}.{node.attr}"
        for source in using
        for node in nodes_of(source.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    return set(keys) - read


def uncounted(using: Collection[Source]) -> set[str]:
    """`module NAME` of every `NAME = Metric(...)` that is bound nowhere, or whose bound value is kept and never looked at again."""
    declared = {(source.module, name): f"{source.module} {name}" for source in using for name in _metrics_of(source.tree)}
    counted: set[str] = set()
    for source in using:
        names = {name: declared[module, name] for module, name in declared if module == source.module}
        for node in nodes_of(source.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = [(node.module, alias) for alias in node.names if (node.module, alias.name) in declared]
                names |= {alias.asname or alias.name: declared[module, alias.name] for module, alias in imported}
        counted |= {names[name] for name in _counted(source.tree) if name in names}
    return set(declared.values()) - counted


def _metrics_of(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Call):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if ast.unparse(statement.value.func).rpartition(".")[2] == "Metric":
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _counted(tree: ast.Module) -> Iterator[str]:
    """The names that are bound, and of those that are kept, the ones whose keeper is looked at."""
    kept: dict[str, str] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            keeper = _keeper(node.targets[0])
            for name in _bound_by(node.value):
                if keeper is not None:
                    kept[name] = keeper
    looked_at = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for name in _bound_by(tree):
        if name not in kept or kept[name] in looked_at:
            yield name


def _keeper(target: ast.expr) -> str | None:
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else None


def _bound_by(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _BINDING and call.args:
            first = call.args[0]
            name = _keeper(first)
            if name is not None:
                yield name
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "family":
            yield from filter(None, [_keeper(call.func.value)])
