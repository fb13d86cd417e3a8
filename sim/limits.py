"""Bounds that are lowered so that a short run reaches what a large log reaches in days; lowered wherever the code has them.

A bound is bound to more names than the one it was given: modules import it by name, compute others from it at import, and have it as the
default of a parameter. `lowered` replaces all of these, and refuses where it cannot.
"""

import ast
import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from broker.fetching.limits import FetchLimits
from compactor.limits import CompactorLimits

PACKAGES: Final = ("storage", "process", "broker", "compactor")


class Limit(NamedTuple):
    module: str
    name: str
    value: float


SMALL: Final = (
    Limit("storage.limits", "PENDING_ENTRIES_MAX", 3),
    Limit("storage.limits", "INLINE_PENDING_BYTES_MAX", 350),
    Limit("storage.limits", "PRODUCERS_HOT_MAX", 2),
    Limit("storage.limits", "PRODUCER_PAGE_BYTES_MAX", 600),
    Limit("storage.limits", "PRODUCER_PAGES_WRITTEN_MAX", 2),
    Limit("storage.limits", "PRODUCERS_PER_COMMIT_MAX", 6),
    Limit("storage.limits", "WRITERS_KEPT_MAX", 1),
    Limit("storage.log.writers", "LOOK_EVERY_S", 0.2),
    Limit("storage.log.writers", "DEAD_KEPT_MAX", 1),
    Limit("storage.log.inline", "CARRIED_AT_ONCE_MAX", 1),
    Limit("storage.log.inline", "LARGER_BYTES_MAX", 400),
    Limit("storage.log.inline", "LANE_COMMITS_MAX", 2),
    Limit("storage.log.inline", "LARGER_EVERY_S", 0.3),
    Limit("storage.log.inline", "LARGER_PER_S", 2.0),
    Limit("storage.log.inline", "LARGER_KEPT_MAX", 2),
    Limit("storage.log.flights", "UNATTENDED_MAX", 1),
    Limit("storage.log.page_store", "SWEEP_EVERY_S", 1.0),
    Limit("storage.log.kept_chunks", "CHUNKS_KEPT_MAX", 2),
    Limit("storage.log.kept_chunks", "CHUNKS_BYTES_MAX", 6_000),
    Limit("storage.log.entry_scan", "CHUNKS_PER_TURN", 1),
    Limit("storage.log.entry_scan", "SEGMENTS_PER_TURN", 1),
    Limit("storage.log.kept_segments", "SEGMENTS_KEPT_MAX", 1),
    Limit("storage.log.kept_segments", "PARTITIONS_KEPT_MAX", 1),
    Limit("storage.log.read_ahead", "FRONTS_KEPT_MAX", 1),
    Limit("storage.log.entries_ahead", "AHEAD_BYTES", 100),
    Limit("storage.log.entries_ahead", "AHEAD_BYTES_MAX", 200),
    Limit("storage.log.entries_ahead", "SAID_ENTRIES_MAX", 4),
    Limit("storage.log.entries_ahead", "AHEAD_ENTRIES_MAX", 2),
    Limit("storage.log.entries_ahead", "GET_BYTES_MAX", 300),
    Limit("storage.log.entries_ahead", "PLACES_SAID_MAX", 1),
    Limit("storage.log.flights", "PLACES_KEPT_MAX", 8),
    Limit("storage.log.segments", "BLOCK_BYTES", 500),
    Limit("storage.log.segments", "FOOTERS_BYTES_MAX", 3_000),
    Limit("storage.log.read", "PLACES_KEPT_MAX", 2),
    Limit("storage.log.tail", "JOIN_BELOW_BYTES", 100),
    Limit("storage.log.batcher", "QUIET_BYTES_MIN", 300),
    Limit("storage.log.upload_places", "SLOW_UPLOADS_MAX", 1),
)
"""The ring, the hot producers, the writers and the memories of a reader overflow within seconds."""
SMALL_FETCHES: Final = FetchLimits(looked_at_per_step=1, reads_at_once=1, reads_under_way_max=2, partitions_per_step=1)
"""A fetch of two partitions is wide."""
TIGHT: Final = (
    Limit("storage.limits", "PENDING_ENTRIES_MAX", 9),
    Limit("storage.limits", "CONTROL_BYTES_MAX", 1_700),
)
"""For eleven producers at most, and the largest slice that a commit carries: a control record with a long ring fits only after that was
drained, and then always."""
FORGETFUL: Final = (
    Limit("storage.log.partition", "PARTITIONS_KEPT_MAX", 3),
    Limit("storage.log.partition", "PARTITIONS_BYTES_MAX", 8_000),
    Limit("storage.log.lost", "LOST_KEPT_MAX", 1),
    Limit("storage.log.lost", "LOST_OF_ALL_KEPT_MAX", 2),
    Limit("storage.log.page_store", "PAGES_CACHED_MAX", 2),
    Limit("storage.log.strangers", "STRANGERS_KEPT_MAX", 2),
    Limit("storage.log.strangers", "STRANGERS_OF_ALL_KEPT_MAX", 3),
)
"""A broker forgets logs and pages of producers that it has touched, and who waits."""
SHORT_DEADLINES: Final = (
    Limit("storage.log.append", "COMMIT_TIMEOUT_S", 1.5),
    Limit("storage.log.commit", "WRITE_TIMEOUT_S", 0.5),
    Limit("storage.log.commit", "STRANGERS_WAIT_S", 10.0),
    Limit("storage.log.control_reads", "READ_TIMEOUT_S", 0.5),
    Limit("storage.log.index", "READ_TIMEOUT_S", 0.5),
    Limit("storage.log.page_store", "TIMEOUT_S", 0.5),
    Limit("storage.log.trim", "WRITE_TIMEOUT_S", 0.5),
    Limit("storage.log.upload", "TRY_TIMEOUT_S", 0.5),
    Limit("storage.log.upload", "UPLOAD_TIMEOUT_S", 1.0),
)
"""Short beside the outages and pauses of a run, so that commits are given up, abandoned and buried. A stranger waits for longer than a
commit and the longest pause of a broker together: what comes before it is then not on its way any more."""


IMPATIENT: Final = tuple(limit for limit in SHORT_DEADLINES if limit.name in ("WRITE_TIMEOUT_S", "READ_TIMEOUT_S"))
"""A request without an answer is soon one whose outcome is unknown, and a commit is tried again for long after that."""
SHORTEST_WAIT: Final = (
    *(limit for limit in SHORT_DEADLINES if limit.name != "STRANGERS_WAIT_S"),
    Limit("storage.log.commit", "STRANGERS_WAIT_S", 2.0),
)
"""For runs in which no request is late and no broker pauses: longer than a commit is all that a stranger has to wait."""


def small_compactor(limits: CompactorLimits) -> CompactorLimits:
    """As SMALL: its memories overflow within seconds, and its requests are split."""
    return replace(
        limits,
        keys_per_delete=1,
        inline_bytes_many=200,
        segment_entries_max=5,
        slice_read_bytes_max=300,
        gap_bytes_max=100,
        get_bytes_max=700,
        spool_chunk_bytes=400,
        begun_together_max=2,
        finished_together_max=1,
        merge_keys_per_put=1,
        merge_segments_read_max=6,
        chunks_per_turn=1,
        purge_records_per_run=2,
        purge_objects_per_delete=1,
        purged_topics_kept_max=1,
        retention_looks_kept_max=1,
        retention_sizes_kept_max=8,
        dead_writers_max=0,
        noted_brokers_max=3,
        gone_brokers_kept_max=3,
        broker_alive_for_s=2.0,
    )


def short_deadlines_compactor(limits: CompactorLimits) -> CompactorLimits:
    """As SHORT_DEADLINES."""
    return replace(limits, call_timeout_s=0.5)


class LimitPlace(NamedTuple):
    """Where a value lives that follows from a lowered limit: an attribute of `owner`, or the default of a parameter."""

    owner: Any  # a module or a function
    name: str
    value: object

    @property
    def current(self) -> object:
        if isinstance(self.owner, FunctionType):
            return inspect.signature(self.owner).parameters[self.name].default
        return getattr(self.owner, self.name)

    def put(self, value: object) -> None:
        if not isinstance(self.owner, FunctionType):
            setattr(self.owner, self.name, value)
        elif (named := self.owner.__kwdefaults__) and self.name in named:
            named[self.name] = value
        else:
            names = [
                p.name
                for p in inspect.signature(self.owner).parameters.values()
                if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY
            ]
            defaults = list(self.owner.__defaults__ or ())
            defaults[names.index(self.name)] = value
            self.owner.__defaults__ = tuple(defaults)


@contextlib.contextmanager
def lowered(limits: Sequence[Limit]) -> Iterator[None]:
    """Every place of the code that follows from `limits` has its new value meanwhile. Raises `LookupError` for a limit that is gone."""
    changed: list[tuple[LimitPlace, object]] = []
    try:
        for place in places(tuple(limits)):
            changed.append((place, place.current))
            place.put(place.value)
        yield
    finally:
        for place, before in reversed(changed):
            place.put(before)


@functools.cache
def places(limits: tuple[Limit, ...]) -> tuple[LimitPlace, ...]:
    """All places of the modules loaded now that follow from `limits`, with the values they should have."""
    wanted: dict[tuple[str, str], object] = {(limit.module, limit.name): limit.value for limit in limits}
    for module, name in wanted:
        if not hasattr(sys.modules.get(module), name):
            raise LookupError(f"there is no limit {name} in {module} any more: mend sim/limits.py")
    found: dict[tuple[int, str], LimitPlace] = {}
    count = -1
    while count != len(found):  # a value computed from a limit may be imported, and computed with, in turn
        count = len(found)
        for loaded in list(sys.modules.values()):
            if loaded is not None and loaded.__name__.partition(".")[0] in PACKAGES:
                for place in _places_in(loaded, wanted):
                    found[id(place.owner), place.name] = place
                    if isinstance(place.owner, ModuleType):
                        wanted[place.owner.__name__, place.name] = place.value
    return tuple(found.values())


def _places_in(module: ModuleType, wanted: dict[tuple[str, str], object]) -> Iterator[LimitPlace]:
    if not any(name in _source_of(module.__name__) for _, name in wanted):
        return
    here = {name: value for (owner, name), value in wanted.items() if owner == module.__name__}
    tree = _tree_of(module.__name__)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module or "", alias.name) in wanted:
                    here[alias.asname or alias.name] = wanted[node.module or "", alias.name]
    for name, value in here.items():
        yield LimitPlace(module, name, value)
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=expression)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression)
            ):
                if name not in here and _reads(expression, here):
                    here[name] = _computed(expression, module, here)
                    yield LimitPlace(module, name, here[name])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _defaults(node, getattr(module, node.name), module, here)
            case ast.ClassDef():
                yield from _class_places(node, getattr(module, node.name), module, here)


def _class_places(node: ast.ClassDef, owner: type, module: ModuleType, here: dict[str, object]) -> Iterator[LimitPlace]:
    for member in node.body:
        match member:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function = inspect.unwrap(inspect.getattr_static(owner, member.name))
                if isinstance(function, FunctionType):
                    yield from _defaults(member, function, module, here)
            case ast.Assign(value=expression) | ast.AnnAssign(value=ast.expr() as expression):
                if _reads(expression, here):
                    raise LookupError(f"a lowered limit is the default of a field, which cannot be replaced: {module.__name__}.{node.name}")


def _defaults(
    node: ast.FunctionDef | ast.AsyncFunctionDef, function: Any, module: ModuleType, here: dict[str, object]
) -> Iterator[LimitPlace]:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [(name, default) for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is not None]
    for argument, default in pairs:
        if _reads(default, here):
            yield LimitPlace(function, argument.arg, _computed(default, module, here))


def _reads(expression: ast.expr, here: dict[str, object]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in here for node in ast.walk(expression))


def _computed(expression: ast.expr, module: ModuleType, here: dict[str, object]) -> object:
    return eval(compile(ast.Expression(expression), f"<{module.__name__}>", "eval"), {**vars(module), **here})  # noqa: S307 - our own source


@functools.cache
def _source_of(module: str) -> str:
    path = sys.modules[module].__file__
    return Path(path).read_text() if path is not None else ""


@functools.cache
def _tree_of(module: str) -> ast.Module:
    return ast.parse(_source_of(module))
