"""What a broker remembers of a partition has one writer for each field: who asks why a value is what it is has one module to read."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from storage.log.partition import CachedManifest, CommitQueue, PartitionLog, Readers
from storage.log.producers import ProducerMemory
from tests.architecture.test_modules import ROOT, modules
from tests.architecture.trees import nodes_of, tree_of, walked

WRITERS: Final = {
    "seen": dict.fromkeys(CachedManifest.__slots__, "storage/log/partition.py"),
    "commit_queue": dict.fromkeys(CommitQueue.__slots__, "storage/log/commit.py") | {"gathered": "storage/log/writer.py"},
    "readers": {"tail": "storage/log/partition.py", "wakers": "broker/delayed_fetch.py"},
    "producers": dict.fromkeys(ProducerMemory.__slots__, "storage/log/producers.py")
    | {"lost": "storage/log/producers.py", "waiting": "storage/log/producers.py"},
    "log": dict.fromkeys(PartitionLog.__slots__, "storage/log/partition.py"),
}
"""By the attribute or variable that holds it, the module that writes each field. A class may give its own fields their first value."""
OF_NOTHING_ELSE: Final = {"foreign_version", "hinted_version", "committed_epoch", "gathered", "page_garbage", "is_forgotten"}
"""Fields whose name says what they belong to, whatever the variable is called."""
MUTATORS: Final = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "remove", "reverse"),
    *("setdefault", "sort", "update"),
}
CLASSES: Final = {
    "CachedManifest": "seen",
    "CommitQueue": "commit_queue",
    "Readers": "readers",
    "ProducerMemory": "producers",
    "PartitionLog": "log",
}


def writes(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, holder and field of each write: assigned, deleted, or changed in place; by way of a variable, too, within one function."""
    functions = [node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inits = {id(node) for function in functions if function.name == "__init__" for node in walked(function)}
    for scope in (tree, *functions):
        nodes = walked(scope)
        variables = dict(_variables(nodes))
        for node in nodes:
            for target in _changed(node):
                field = _field(target, variables)
                if field is not None and not (id(node) in inits and isinstance(node, ast.Assign | ast.AnnAssign)):
                    yield target.lineno, *field


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        yield node.func.value
        return
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"setattr", "delattr"}:
        if isinstance(node.args[1], ast.Constant):
            yield ast.copy_location(ast.Attribute(node.args[0], str(node.args[1].value), ast.Store()), node)
        return
    else:
        return
    # A plain name that is bound anew changes nothing; one that is added to may change what it stands for.
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(each, ast.Subscript):
                yield each.value
            elif isinstance(each, ast.Attribute) or isinstance(node, ast.AugAssign):
                yield each


def _variables(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """What a variable of the function stands for: a field or a holder, by assignment or by its type."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (
                    zip(target.elts, node.value.elts, strict=False)
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    else [(target, node.value)]
                )
                for name, value in pairs:
                    if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                        yield name.id, value
        elif isinstance(node, ast.arg) and node.annotation is not None:
            words = ast.unparse(node.annotation).strip("'\"")
            if words in CLASSES:
                yield node.arg, ast.Name(CLASSES[words])


def _field(target: ast.expr, variables: dict[str, ast.expr]) -> tuple[str, str] | None:
    if isinstance(target, ast.Name) and isinstance(variables.get(target.id), ast.Attribute):
        target = variables[target.id]
    if not isinstance(target, ast.Attribute):
        return None
    holder = target.value
    if isinstance(holder, ast.Name) and holder.id in variables:
        holder = variables[holder.id]
    name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else ""
    if target.attr in WRITERS.get(name, ()):
        return name, target.attr
    if target.attr in OF_NOTHING_ELSE:
        return next((kind, target.attr) for kind, fields in WRITERS.items() if target.attr in fields)
    return None


def foreign_writes(path: str, tree: ast.Module) -> list[str]:
    found = {(line, holder, field) for line, holder, field in writes(tree) if WRITERS[holder][field] != path}
    return [f"{path}:{line} writes {holder}.{field}" for line, holder, field in sorted(found)]


def test_each_field_of_what_is_remembered_of_a_partition_is_written_by_one_module() -> None:
    found = [write for path in modules() for write in foreign_writes(str(path.relative_to(ROOT)), tree_of(path))]

    assert not found, "give the owner a method for it: " + "; ".join(found)


def test_every_field_has_a_writer_that_exists() -> None:
    for name, one in CLASSES.items():
        fields = {
            "seen": CachedManifest,
            "commit_queue": CommitQueue,
            "readers": Readers,
            "producers": ProducerMemory,
            "log": PartitionLog,
        }[one].__slots__
        assert set(WRITERS[one]) == set(fields), f"a field of {name} has no writer, or is no more"
        assert all((ROOT / Path(path)).exists() for path in WRITERS[one].values())


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("def f(log):\n    log.seen.version = 1", "seen.version"),
        ("def f(log):\n    log.seen.manifest, log.seen.version = None, 1", "seen.version"),
        ("def f(commit):\n    commit.log.seen.hinted_version -= 1", "seen.hinted_version"),
        ("def f(log):\n    seen = log.seen\n    seen.broken = None", "seen.broken"),
        ("def f(known: CachedManifest):\n    known.manifest = None", "seen.manifest"),
        ("def f(x):\n    x.foreign_version = 3", "seen.foreign_version"),
        ("def f(log, c):\n    log.commit_queue.commits.append(c)", "commit_queue.commits"),
        ("def f(log):\n    del log.commit_queue.commits[0]", "commit_queue.commits"),
        ("def f(log):\n    queue = log.commit_queue\n    queue.is_busy = True", "commit_queue.is_busy"),
        ("def f(log):\n    waiting = log.commit_queue.commits\n    waiting.clear()", "commit_queue.commits"),
        ("def f(log, c):\n    waiting = log.commit_queue.commits\n    waiting += [c]", "commit_queue.commits"),
        ("def f(log, b):\n    log.commit_queue.gathered[0] = b", "commit_queue.gathered"),
        ("def f(log, w):\n    log.readers.wakers[w] = None", "readers.wakers"),
        ("async def f(log):\n    log.producers.page_garbage = []", "producers.page_garbage"),
        ("def f(log):\n    log.producers.lost.pop(1)", "producers.lost"),
        ("def f(log):\n    setattr(log.seen, 'version', 1)", "seen.version"),
        ("def f(log):\n    log.commit_queue = None", "log.commit_queue"),
    ],
)
def test_a_write_from_elsewhere_is_found(source: str, field: str) -> None:
    assert [write.split(" writes ")[1] for write in foreign_writes("broker/elsewhere.py", ast.parse(source))][-1:] == [field]


@pytest.mark.parametrize(
    "source",
    [
        "def f(log):\n    manifest = log.seen.manifest\n    manifest = None",
        "def f(self, log):\n    self.manifest = log.seen.manifest",
        "def f(log):\n    return log.producers.waiting.permitted_starts(1.0)",
        "def f(log):\n    names = list(log.commit_queue.commits)\n    names.append(1)",
    ],
)
def test_a_read_is_no_write(source: str) -> None:
    assert foreign_writes("broker/elsewhere.py", ast.parse(source)) == []
