"""`forebay storage verify`, once its options are read: findings on stdout, how far it is on stderr."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import typer
from rich.console import Console

from forebay.commands.demo.progress import progress
from forebay.commands.storage.running import EXIT_UNSOUND, NotThere, over_stores
from forebay.commands.storage.views import as_blocks, counted
from forebay.kafka_client.options import Output, Terminal
from process.settings.keys import nearest
from runtime.clock import SystemClock
from storage.errors import StorageError
from storage.metadata import keys
from storage.opening import Stores
from storage.verify.findings import Severity, StoreFinding
from storage.verify.inventory import Inventory, unreferenced_findings
from storage.verify.partitions import active_partitions, count_offsets
from storage.verify.reading import StoreReading
from storage.verify.verification import SAMPLE_PARTS, Checked, Depth, Findings, Verification

_PERCENT: Final = "write a share of the objects, such as 1% or 0.25%"


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
        with progress(console, "offsets verified", total=total, clock=clock) as advance:
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
    read = f", read {checked.deep_bytes:,} bytes" if checked.deep_bytes else ""
    errors, warnings = findings.severities[Severity.ERROR], findings.severities[Severity.WARNING]
    verdict = "Nothing is wrong." if findings.is_sound else f"{counted(errors, 'error')}, {counted(warnings, 'warning')}."
    return f"Verified {', '.join(what)}; {looked}{read}. {verdict}"
