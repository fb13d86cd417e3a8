"""`forebay storage gc` and early pages: what is left of brokers that died is counted, and removed when asked."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from typer.testing import CliRunner

from forebay.cli import application
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.identity import identify
from storage.formats.manifest import Manifest, encode
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys
from storage.metadata.port import ABSENT, Key, Put
from storage.opening import Stores, open_stores
from storage.vocabulary import PartitionId, TopicId
from tests.kit.batches import batch_bytes
from tests.unit.compactor.early import EarlyObject

ONE = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0)


def over(folder: Path, work: Callable[[Stores], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = SystemClock()
        ids = IdSource(clock=clock)
        urls = {"storage_url": f"file://{folder}/objects", "metadata_url": f"sqlite:///{folder}/meta.db"}
        async with open_stores(**urls, clock=clock, ids=ids, telemetry=Telemetry()) as stores:  # type: ignore[arg-type]
            await identify(stores.metadata, stores.objects, ids, clock)
            await work(stores)

    asyncio.run(run())


def gc(folder: Path, *options: str) -> tuple[int, str]:
    stores = (f"--set=storage.url=file://{folder}/objects", f"--set=metadata.url=sqlite:///{folder}/meta.db")
    result = CliRunner().invoke(application, ["storage", "gc", "--set=compactor.delete_grace=0ms", *stores, *options])
    return result.exit_code, result.stdout


async def _leave_pages(stores: Stores) -> None:
    """Two pages of a stored object, one that a commit never named, one of a live entry."""
    await stores.metadata.write([Put(PartitionKeys(ONE).manifest, encode(Manifest()), ABSENT)])
    stored, dead = EarlyObject(stores.metadata, stores.objects), EarlyObject(stores.metadata, stores.objects)
    await stored.commit({ONE: [batch_bytes()]})
    await stored.commit({ONE: [batch_bytes()]})
    await stored.store()
    await dead.commit({ONE: [batch_bytes()]})
    await dead.put_page({ONE: [batch_bytes()]})


def test_pages_that_nobody_needs_are_counted_and_deleted_when_asked(tmp_path: Path) -> None:
    over(tmp_path, _leave_pages)
    code, table = gc(tmp_path)
    dry = json.loads(gc(tmp_path, "-o", "json")[1])
    wet = json.loads(gc(tmp_path, "--delete", "-o", "json")[1])
    after = json.loads(gc(tmp_path, "-o", "json")[1])

    # An entry names the object of the third, so a look finds it, and nobody can say that it does not need the fourth.
    assert (code, "early pages" in table) == (0, True)
    assert (dry["early_pages"], dry["unused_early_pages"], dry["deleted"]) == (4, 2, False)
    assert (wet["unused_early_pages"], wet["unused_early_bytes"]) == (2, dry["unused_early_bytes"])
    assert (after["early_pages"], after["unused_early_pages"]) == (2, 0)


def test_what_is_no_page_is_named_and_makes_the_exit_code_6(tmp_path: Path) -> None:
    async def leave_rubbish(stores: Stores) -> None:
        await stores.metadata.write([Put(Key(f"{EARLY_PREFIX}readme", PartitionKeys(ONE).partition_key), b"?", ABSENT)])

    over(tmp_path, leave_rubbish)
    code, table = gc(tmp_path, "--delete")
    _, found = gc(tmp_path, "--delete", "-o", "json")

    assert code == 6
    assert "llog/early/readme" in table
    assert json.loads(found)["unsure_early_pages"] == 1
