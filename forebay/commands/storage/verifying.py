"""Work over the stores that the settings name: `forebay storage verify` and `gc`, and what an operator says of objects by name.

The stores are opened, read and closed; what goes wrong becomes one line and an exit code (`over_stores`). Findings go to stdout, progress
to stderr. Metadata that went back to an older copy, and were accepted, do not name what was written since: such objects are kept, or
missing (docs/internals/design/upkeep.md#metadata-that-went-back).
"""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import typer
from rich.console import Console

from forebay.kafka_client.failures import errors_explained
from forebay.kafka_client.options import Output, Terminal
from forebay.kafka_client.text import facts, printable, step_progress
from forebay.opening import check_there, open_for_reading
from process import event_loop
from process.settings.loading import load
from process.settings.reference import nearest
from runtime import logs
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.collections import Deletions, change_collections, read_collections, with_lost
from storage.errors import NotFound, StorageError
from storage.formats.manifest import SegmentEntry
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.metadata import keys
from storage.objects.port import is_key
from storage.opening import Stores
from storage.verify.early import has_early_pages
from storage.verify.findings import Severity, StoreFinding
from storage.verify.inventory import Inventory, kind_of_object, objects_under, unreferenced_findings
from storage.verify.partitions import ActivePartition, PartitionWalk, active_partitions, count_offsets, side_by_side
from storage.verify.reading import StoreReading
from storage.verify.verification import SAMPLE_PARTS, Checked, Depth, Findings, Verification

if TYPE_CHECKING:
    from compactor.collector import CollectionReport

EXIT_NOT_FOUND: Final = 4
EXIT_UNSOUND: Final = 6
T = TypeVar("T")
_PERCENT: Final = "write a share of the objects, such as 1% or 0.25%"
READS_AT_ONCE: Final = 16
FAILURES_SHOWN_MAX = 20


class NotThere(Exception):
    """Something that was asked for does not exist: `str()` is the line for the operator."""


def over_stores(file: Path | None, assignments: Sequence[str], work: Callable[[Stores], Awaitable[T]]) -> T:
    """The result of `work`. Raise `typer.Exit` when a line on stderr has said why there is none."""
    logs.configure(format="auto", level="error")

    async def run() -> T | NotThere:
        async with open_for_reading(load(file=file, environ=os.environ, assignments=assignments).settings) as stores:
            try:
                return await work(stores)
            except NotThere as error:
                # Raised through the stores, it would come back in the groups of their tasks.
                return error

    with errors_explained():
        found = event_loop.run(run())
    if isinstance(found, NotThere):
        typer.echo(str(found), err=True)
        raise typer.Exit(EXIT_NOT_FOUND)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    topics: tuple[str, ...]
    partition: int | None
    sample_parts: int
    is_deep: bool
    concurrency: int


class VerifyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`. `counts`: findings by kind, those that are not listed too."""

    sound: bool
    checked: dict[str, int]
    severities: dict[str, int]
    counts: dict[str, int]
    findings: list[StoreFinding]


def sample_parts(text: str) -> int:
    """Ten-thousandths of `1%`. Raise `BadParameter` for what is no share, or none of the objects."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError as error:
        raise typer.BadParameter(f'--sample "{text}": {_PERCENT}') from error
    if not text.endswith("%") or not 0.01 <= percent <= 100:
        raise typer.BadParameter(f'--sample "{text}": {_PERCENT}, from 0.01% to 100%')
    return round(percent * SAMPLE_PARTS / 100)


def verify_stores(file: Path | None, assignments: Sequence[str], options: VerifyOptions, terminal: Terminal) -> int:
    """The exit code."""

    async def work(stores: Stores) -> tuple[Findings, Checked]:
        return await _verified(stores, options, terminal)

    findings, checked = over_stores(file, assignments, work)
    if terminal.output is Output.JSON:
        terminal.show_json(_answer(findings, checked))
    elif findings.kept:
        typer.echo(as_blocks(findings.kept))
    unlisted = sum(findings.counts.values()) - len(findings.kept)
    if unlisted:
        terminal.warn(f"{unlisted} more findings are counted and not listed.")
    terminal.say(_summary(findings, checked))
    return 0 if findings.is_sound else EXIT_UNSOUND


async def _verified(stores: Stores, options: VerifyOptions, terminal: Terminal) -> tuple[Findings, Checked]:
    reading = StoreReading(stores.metadata, stores.objects, concurrency=options.concurrency)
    await _check_there(reading, options)
    verification = Verification(reading, depth=Depth(sample_parts=options.sample_parts, is_deep=options.is_deep))
    clock = SystemClock()
    is_shown = not terminal.quiet and terminal.output is Output.TABLE
    console = Console(file=sys.stderr, quiet=not is_shown)
    total = await count_offsets(reading, options.topics, partition=options.partition) if is_shown else 0
    try:
        with step_progress(console, "offsets verified", total=total, clock=clock) as advance:
            result = await verification.run(options.topics, partition=options.partition, moved=advance)
        if not options.topics:
            inventory = Inventory(reading, clock)
            for one in unreferenced_findings(await inventory.run()):
                result.findings.add(one)
    except* StorageError:
        # What was found until a store fell silent is worth as much.
        if verification.findings.kept and terminal.output is Output.TABLE:
            typer.echo(as_blocks(verification.findings.kept))
        raise
    return result.findings, result.checked


async def check_topics(reading: StoreReading, names: Sequence[str]) -> None:
    """Raise `NotThere` for one that does not exist."""
    for name in names:
        (record,) = await reading.records([keys.topic(name)])
        if record is None:
            start, end = keys.topics()
            known = [one.path.removeprefix(keys.TOPICS_PREFIX) for one in await reading.page(start, end, 10_000)]
            meant = nearest(name, known)
            raise NotThere(f'Topic "{name}" does not exist.' + (f' Nearest: "{meant}".' if meant else ""))


async def _check_there(reading: StoreReading, options: VerifyOptions) -> None:
    """Raise `NotThere` for a topic or a partition that does not exist."""
    await check_topics(reading, options.topics)
    if options.partition is not None:
        async for _ in active_partitions(reading, options.topics, lambda _: None, partition=options.partition):
            return
        raise NotThere(f'Topic "{options.topics[0]}" has no partition {options.partition}.')


def _answer(findings: Findings, checked: Checked) -> VerifyAnswer:
    return VerifyAnswer(
        sound=findings.is_sound,
        checked=msgspec.to_builtins(checked),
        severities={severity.value: findings.severities[severity] for severity in Severity},
        counts={kind.value: count for kind, count in findings.counts.items()},
        findings=findings.kept,
    )


def _summary(findings: Findings, checked: Checked) -> str:
    what = [counted(checked.partitions, "partition"), counted(checked.segments, "segment"), counted(checked.entries, "entry", "entries")]
    looked = f"looked at {counted(checked.objects, 'object')}"
    if checked.early:
        looked += f" and {counted(checked.early, 'entry', 'entries')} in early pages"
    read = f", read {checked.deep_bytes:,} bytes" if checked.deep_bytes else ""
    errors, warnings = findings.severities[Severity.ERROR], findings.severities[Severity.WARNING]
    verdict = "Nothing is wrong." if findings.is_sound else f"{counted(errors, 'error')}, {counted(warnings, 'warning')}."
    return f"Verified {', '.join(what)}; {looked}{read}. {verdict}"


async def kept_objects(stores: Stores) -> frozenset[str]:
    """The names of objects that nothing names and that stay. Reads all metadata if any may. Raises `Unavailable`.

    An object of a partition whose entries cannot be read counts as named.
    """
    reading = StoreReading(stores.metadata, stores.objects, concurrency=READS_AT_ONCE)
    known = await read_collections(stores.metadata)
    if not known.kept:
        return frozenset()
    found: set[str] = set()
    async for stat in objects_under(reading, ""):
        _, object_id = kind_of_object(stat.key)
        if object_id is not None and known.keeps(object_id):
            found.add(stat.key)
    unreadable: list[str] = []

    async def unmark(one: ActivePartition) -> None:
        walk = PartitionWalk(reading, one.partition, lambda problem: unreadable.append(problem.kind.name))
        if await walk.start() is None:
            return
        async for page in walk.pages():
            for source, _ in page:
                is_segment = isinstance(source, SegmentEntry)
                found.discard(segment_key(one.partition, source.object_id) if is_segment else object_key(source.object_id))

    await side_by_side(active_partitions(reading, (), lambda _: None), unmark)
    return frozenset() if unreadable else frozenset(found)


async def is_early(reading: StoreReading, key: str) -> bool:
    """Whether early pages have bytes of an object of this name."""
    kind, object_id = kind_of_object(key)
    return kind == "wal" and object_id is not None and await has_early_pages(reading, object_id)


def accept_as_lost(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, key: str) -> int:
    """The exit code."""

    async def work(stores: Stores) -> None:
        if not is_key(key):
            raise NotThere(f"{key!r} is not the name of an object. Missing ones are named by: forebay storage verify")
        try:
            await stores.objects.stat(key)
        except NotFound:
            if await is_early(StoreReading(stores.metadata, stores.objects, concurrency=READS_AT_ONCE), key):
                raise NotThere(f"The object {key} is not lost: it is not stored yet, and early pages have its bytes.") from None
            await change_collections(stores.metadata, partial(with_lost, key=key), action="accept an object as lost")
        else:
            raise NotThere(f"The object {key} is there, so nothing waits for it. Missing ones are named by: forebay storage verify")

    over_stores(file, assignments, work)
    terminal.show(
        {"key": key, "accepted_as_lost": True}, f"{key} is accepted as lost: objects are deleted again, its records stay unreadable."
    )
    return 0


def delete_kept_objects(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, keys: Sequence[str]) -> int:
    """The exit code."""

    async def work(stores: Stores) -> None:
        kept = await kept_objects(stores)
        for key in keys:
            if key not in kept:
                raise NotThere(f"{key} is not kept, so nothing was deleted. Which are: forebay storage objects --kept")
        clock = SystemClock()
        await Deletions(stores.metadata, stores.objects, ids=IdSource(clock=clock, entropy=os.urandom), clock=clock).count()
        await stores.objects.delete_many(keys)

    over_stores(file, assignments, work)
    terminal.show({"deleted": list(keys)}, f"{len(keys)} objects were deleted.")
    return 0


def collect_garbage(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, delete: bool) -> int:
    """The exit code."""
    from compactor.assembly import open_compactor
    from compactor.measures import outcome_of

    logs.configure(format="auto", level="error")

    async def run() -> "CollectionReport":
        settings = load(file=file, environ=os.environ, assignments=assignments).settings
        check_there(settings)
        async with open_compactor(settings, is_paced=False) as opened:
            return await opened.upkeep.collect(dry_run=not delete)

    with errors_explained():
        report = event_loop.run(run())
    pages, failures, aborted = report.pages, {**report.failed, **report.pages.failed}, 0
    if report.uploads is not None:
        aborted = report.uploads.aborted
        if report.uploads.failed is not None:
            failures["unfinished uploads"] = report.uploads.failed
    failed = [{"of": of, "outcome": outcome_of(error), "cause": str(error)} for of, error in failures.items()]
    lines = {
        "looked_at": report.looked_at,
        "live": report.live,
        "unsure": report.unsure,
        "unused": report.deleted,
        "unused_bytes": report.deleted_bytes,
        "early_pages": pages.looked_at,
        "unused_early_pages": pages.deleted,
        "unused_early_bytes": pages.deleted_bytes,
        "unsure_early_pages": pages.unsure,
        "uploads": aborted,
        "deleted": delete,
        "failed": failed,
    }
    rows: list[tuple[str, object]] = [
        ("looked at", report.looked_at),
        ("live", report.live),
        ("deleted" if delete else "unused", f"{report.deleted}, {report.deleted_bytes} bytes"),
    ]
    if pages.looked_at:
        verb = "deleted" if delete else "unused"
        rows.append(("early pages", f"{pages.looked_at} of old objects, {pages.deleted} {verb}, {pages.deleted_bytes} bytes"))
    if aborted:
        rows.append(("aborted" if delete else "unfinished", f"{aborted} uploads that nobody will finish"))
    if report.unsure or pages.unsure:
        rows.append(("unsure", report.unsure + pages.unsure))
    rows += [(f"{one['outcome']}", f"{one['of']}: {one['cause']}") for one in failed[:FAILURES_SHOWN_MAX]]
    terminal.show(lines, facts(rows))
    if (report.deleted or pages.deleted or aborted) and not delete:
        terminal.say("Nothing was deleted. A compactor deletes them by itself; --delete does so at once.")
    return EXIT_UNSOUND if report.unsure or pages.unsure else 0


def as_blocks(findings: Sequence[StoreFinding]) -> str:
    return "\n\n".join(_block(one) for one in findings)


def counted(number: int, one: str, more: str | None = None) -> str:
    """`1 object`, `2,000 objects`."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def _block(found: StoreFinding) -> str:
    place = "" if found.topic is None else f"  {found.topic}/{found.partition}"
    offsets = "" if found.first_offset is None else f"  offsets {found.first_offset}..{found.last_offset}"
    facts = (("key", found.key), ("object", found.object), ("found", found.found), ("means", found.means), ("do", found.do))
    lines = [f"{found.severity.value}  {found.kind.value}{place}{offsets}"]
    lines += [f"  {name:<6}  {value}" for name, value in facts if value is not None]
    return "\n".join(printable(line) for line in lines)
