"""Counts how often each branch of some modules is taken, by compiling them with counters in between: no line of theirs is written for it.

A branch is an arm of an `if` (the one that is not written, too), of a conditional expression, of a `match`, of a `try` (its handlers), and
the body of a loop. It is named by its function and its own words and not by its line, so that a name survives what is changed around it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

COUNTS: Final = "__branch_counts__"
WORDS_MAX: Final = 90


class Branches(MetaPathFinder):
    """Enter it in `sys.meta_path` before any module that matches `patterns` is imported. `counts` grows while they run."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._names: list[str] = []
        self._counts: list[int] = []

    def install(self) -> None:
        """Raises `RuntimeError` for a module that was imported already."""
        early = [name for name in sys.modules if self._matches(name)]
        if early:
            raise RuntimeError(f"imported before its branches could be counted: {', '.join(early)}")
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self._matches(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self)
        return spec

    @property
    def counts(self) -> dict[str, int]:
        """By name, of every branch of the modules imported so far."""
        return dict(zip(self._names, self._counts, strict=True))

    def compile(self, source: bytes, module: str, path: str) -> CodeType:
        tree = _Counting(module, self._names, self._counts).visit(ast.parse(source))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def lend_to(self, module: ModuleType) -> None:
        setattr(module, COUNTS, self._counts)

    def _matches(self, module: str) -> bool:
        return any(fnmatch(module, pattern) for pattern in self._patterns)


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, branches: Branches) -> None:
        super().__init__(fullname, path)
        self._branches = branches

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self._branches.compile(self.get_data(path), fullname, path)

    def exec_module(self, module: ModuleType) -> None:
        self._branches.lend_to(module)
        super().exec_module(module)


class _Counting(ast.NodeTransformer):
    """Puts a counter at the head of every branch."""

    def __init__(self, module: str, names: list[str], counts: list[int]) -> None:
        self._module = module.removeprefix("storage.log.")
        self._scope: list[str] = []
        self._names = names
        self._counts = counts
        self._used: Counter[str] = Counter()

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._within(node, node.name)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._within(node, node.name)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._within(node, node.name)

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node
        words = f"if {ast.unparse(node.test)}"
        then, otherwise = self._count(f"{words} → then"), self._count(f"{words} → else")
        self.generic_visit(node)
        node.body.insert(0, then)
        node.orelse.insert(0, otherwise)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        words = f"{ast.unparse(node.test)} ?"
        then, otherwise = self._new(f"{words} → then"), self._new(f"{words} → else")
        self.generic_visit(node)
        node.body, node.orelse = _counted(then, node.body), _counted(otherwise, node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._loop(node, f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}")

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self._loop(node, f"async for {ast.unparse(node.target)} in {ast.unparse(node.iter)}")

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._loop(node, f"while {ast.unparse(node.test)}")

    def visit_Try(self, node: ast.Try) -> ast.AST:
        heads = [self._count(f"except {'' if handler.type is None else ast.unparse(handler.type)}") for handler in node.handlers]
        self.generic_visit(node)
        for handler, head in zip(node.handlers, heads, strict=True):
            handler.body.insert(0, head)
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        heads = [self._count(f"case {ast.unparse(case.pattern)}") for case in node.cases]
        self.generic_visit(node)
        for case, head in zip(node.cases, heads, strict=True):
            case.body.insert(0, head)
        return node

    def _within(self, node: Any, name: str) -> ast.AST:
        self._scope.append(name)
        self.generic_visit(node)
        self._scope.pop()
        return node  # type: ignore[no-any-return]

    def _loop(self, node: Any, words: str) -> ast.AST:
        head = self._count(words)
        self.generic_visit(node)
        node.body.insert(0, head)
        return node  # type: ignore[no-any-return]

    def _count(self, words: str) -> ast.stmt:
        place = self._new(words)
        return ast.parse(f"{COUNTS}[{place}] += 1").body[0]

    def _new(self, words: str) -> int:
        if len(words) > WORDS_MAX:
            head, arrow, arm = words.partition(" → ")
            words = f"{head[:WORDS_MAX]}…{arrow}{arm}"
        name = f"{self._module} {'.'.join(self._scope)}: {words}"
        self._used[name] += 1
        if self._used[name] > 1:
            name = f"{name} #{self._used[name]}"
        self._names.append(name)
        self._counts.append(0)
        return len(self._names) - 1


def _counted(place: int, value: ast.expr) -> ast.expr:
    """An expression that counts and has the value of `value`."""
    counting = ast.parse(f"{COUNTS}.__setitem__({place}, {COUNTS}[{place}] + 1)", mode="eval").body
    return ast.Subscript(ast.Tuple([counting, value], ast.Load()), ast.Constant(1), ast.Load())
