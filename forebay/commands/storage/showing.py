"""`forebay storage summary`, `objects` and `object`, once their options are read."""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from forebay.commands.storage.kept import kept_objects
from forebay.commands.storage.object_facts import ObjectAnswer, object_answer
from forebay.commands.storage.running import EXIT_UNSOUND, NotThere, over_stores
from forebay.commands.storage.verifying import check_topics
from forebay.commands.storage.views import object_table, objects_table, partitions_table, summary_table
from forebay.kafka_client.options import Terminal
from runtime.clock import SystemClock
from storage.errors import NotFound
from storage.objects.port import ObjectStat, is_key
from storage.opening import Stores
from storage.verify.inventory import Inventory, PartitionTotal, StoreTotals, objects_under, partition_totals
from storage.verify.reading import StoreReading


class ListedObject(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size_bytes: int
    modified_ms: int


def show_summary(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, concurrency: int) -> int:
    """The exit code."""

    async def work(stores: Stores) -> StoreTotals:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=concurrency)
        console = Console(file=sys.stderr, quiet=terminal.quiet)
        listed = 0
        with console.status("listing objects") as status:

            def count(objects: int) -> None:
                nonlocal listed
                listed += objects
                if listed % reading.limits.objects_per_list == 0:
                    status.update(f"{listed:,} objects listed")

            return await Inventory(reading, SystemClock()).run(listed=count)

    totals = over_stores(file, assignments, work)
    terminal.show(totals, summary_table(totals))
    if totals.unreadable:
        terminal.warn(
            f"{totals.unreadable} partitions cannot be read, so what they name counts as unreferenced. See: forebay storage verify"
        )
    return 0


def show_partitions(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, topics: Sequence[str], concurrency: int) -> int:
    """The exit code."""

    async def work(stores: Stores) -> list[PartitionTotal]:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=concurrency)
        await check_topics(reading, topics)
        return await partition_totals(reading, topics)

    found = over_stores(file, assignments, work)
    terminal.show(found, partitions_table(found))
    for one in found:
        if not one.is_readable:
            terminal.warn(f"{one.topic}/{one.partition} cannot be read to its end. See: forebay storage verify --topic {one.topic}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChoice:
    """Objects to list. `is_kept`: those alone that nothing names and that stay."""

    prefix: str
    older_than_ms: int
    limit: int
    is_kept: bool = False


def show_objects(file: Path | None, assignments: Sequence[str], terminal: Terminal, chosen: ObjectChoice) -> int:
    """The exit code."""
    limit = chosen.limit

    async def work(stores: Stores) -> tuple[list[ListedObject], bool]:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=1)
        stored_before_ms = SystemClock().now_ms() - chosen.older_than_ms
        found: list[ListedObject] = []
        kept = await kept_objects(stores) if chosen.is_kept else None
        page = min(limit + 1, reading.limits.objects_per_list)
        async for stat in _old(objects_under(reading, chosen.prefix, page=page), stored_before_ms):
            if kept is not None and stat.key not in kept:
                continue
            if len(found) == limit:
                return found, True
            found.append(ListedObject(key=stat.key, size_bytes=stat.size_bytes, modified_ms=stat.modified_ms))
        return found, False

    found, has_more = over_stores(file, assignments, work)
    terminal.show(found, objects_table(found))
    if has_more:
        terminal.say(f"There are more than {limit}: --limit shows more, --prefix narrows them down.")
    return 0


def show_object(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, key: str, parts_max: int) -> int:
    """The exit code."""
    if not is_key(key):
        raise typer.BadParameter(f"{key!r} is not the name of an object")

    async def work(stores: Stores) -> ObjectAnswer:
        try:
            return await object_answer(
                StoreReading(stores.metadata, stores.objects, concurrency=1), stores.metadata, key, parts_max=parts_max
            )
        except NotFound as error:
            raise NotThere(f"There is no object {key}. Which there are: forebay storage objects") from error

    answer = over_stores(file, assignments, work)
    terminal.show(answer, object_table(answer))
    if len(answer.parts) < answer.part_count:
        terminal.say(f"{len(answer.parts)} of {answer.part_count} slices or blocks are shown: --limit shows more.")
    return 0 if answer.is_sound else EXIT_UNSOUND


async def _old(objects: AsyncIterator[ObjectStat], stored_before_ms: int) -> AsyncIterator[ObjectStat]:
    async for stat in objects:
        if stat.modified_ms <= stored_before_ms:
            yield stat
