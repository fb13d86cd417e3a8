"""offset → control → entry → early page → batch, for an entry whose object is not stored yet."""

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from forebay.commands.trace import Trace, TraceFailed, trace_as_table
from forebay.commands.tracing import Tracer
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE
from storage.formats.manifest import Early, encode
from storage.metadata import keys
from storage.metadata.port import Key, Put, Record
from tests.kit.batches import batch_bytes
from tests.kit.early_entries import EarlyEntry, made_early
from tests.kit.record_batches import record_batch
from tests.unit.forebay.commands.debug.logged import NAME, Logged, logged
from tests.unit.storage.log.rig import PARTITION

AT = keys.PartitionKeys(PARTITION)


@pytest.fixture
async def log() -> AsyncIterator[Logged]:
    async with logged() as made:
        yield made


async def early(log: Logged) -> list[EarlyEntry]:
    return await made_early(log.metadata, log.objects, PARTITION)


async def failure(log: Logged, offset: int, *, tracer: Tracer | None = None) -> TraceFailed:
    with pytest.raises(TraceFailed) as raised:
        await (tracer or log.tracer).trace(NAME, 0, offset)
    assert "\n" not in str(raised.value)
    return raised.value


async def test_a_batch_whose_object_is_not_stored_yet_is_found_in_its_early_page(log: Logged) -> None:
    sent = batch_bytes(4)
    await log.append(batch_bytes(2), sent)
    (one,) = await early(log)
    await one.put_pages()

    trace = await log.tracer.trace(NAME, 0, 3)

    assert trace.early is not None
    assert trace.batch is not None
    assert (trace.early.page, trace.early.pages, trace.early.object_key) == (one.pages[0].path, (one.pages[0].path,), one.object_key)
    assert (trace.object, trace.problem) == (None, None)
    assert (trace.batch.base_offset, trace.batch.last_offset, trace.batch.crc_ok) == (2, 5, True)
    assert one.data[trace.batch.start - 64 : trace.batch.end - 64] == sent
    table = trace_as_table(trace)
    assert f"early page {one.pages[0].path} has the batch" in table
    assert f"{one.object_key} is not stored yet" in table


async def test_of_several_pages_the_one_where_the_batch_begins_is_named(log: Logged) -> None:
    await log.append(record_batch(b"x" * 70_000), record_batch(b"y" * 70_000))
    (one,) = await early(log)
    await one.put_pages()

    pages = [trace.early.page for offset in (0, 1) if (trace := await log.tracer.trace(NAME, 0, offset)).early is not None]

    assert len(one.pages) == 3
    assert pages == [one.pages[0].path, one.pages[1].path]
    assert "one of 3 of the entry" in trace_as_table(await log.tracer.trace(NAME, 0, 1))


@pytest.mark.parametrize("has_pages", [True, False])
async def test_once_the_object_is_stored_the_batch_is_found_there(log: Logged, has_pages: bool) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)
    await one.put_object()
    if has_pages:
        await one.put_pages()

    trace = await log.tracer.trace(NAME, 0, 1)

    assert trace.object is not None
    assert (trace.object.key, trace.early) == (one.object_key, None)
    assert trace.batch is not None
    assert trace.batch.start == 64


class Storing:
    """An object store in which the object arrives, and its page goes, once it was asked for in vain."""

    def __init__(self, log: Logged, one: EarlyEntry) -> None:
        self.inner, self.one, self.is_stored = log.objects, one, False

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def stat(self, key: str) -> object:
        try:
            return await self.inner.stat(key)
        finally:
            if not self.is_stored:
                self.is_stored = True
                await self.one.put_object()
                await self.one.drop_pages()


async def test_an_object_that_is_stored_meanwhile_is_found(log: Logged) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)
    await one.put_pages()

    trace = await Tracer(metadata=log.metadata, objects=Storing(log, one)).trace(NAME, 0, 1)  # type: ignore[arg-type]

    assert (trace.object is not None, trace.early) == (True, None)


async def test_neither_object_nor_page_is_loss_and_says_what_was_looked_for(log: Logged) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)

    found = await failure(log, 1)

    assert found.exit_code == 1
    assert f"Object {one.object_key} of a live entry is missing, and early pages do not have its bytes: offsets 0..1" in str(found)
    assert found.so_far is not None
    assert found.so_far.entry is not None


def damaged(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def cut(value: bytes) -> bytes:
    return value[:-1]


@pytest.mark.parametrize("damage", [damaged, cut])
async def test_a_damaged_page_is_named_while_the_object_is_not_there(log: Logged, damage: Callable[[bytes], bytes]) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)
    await one.put_pages()
    (record,) = await log.metadata.get_many(one.pages)
    assert record is not None
    await log.metadata.write([Put(one.pages[0], damage(record.value), None)])

    found = await failure(log, 1)

    assert found.exit_code == 1
    assert str(found).startswith("Damaged early page: ")
    assert one.pages[0].path in str(found)
    assert "Ask again in a minute" in str(found)
    await one.put_object()
    assert (await log.tracer.trace(NAME, 0, 1)).object is not None


async def test_a_batch_that_was_damaged_before_it_came_into_its_page_is_told(log: Logged) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)
    await one.put_pages(damaged(one.data))

    found = await failure(log, 1)

    assert str(found).startswith("Checksum mismatch: ")
    assert one.pages[0].path in str(found)
    assert found.so_far is not None
    assert found.so_far.early is not None


async def test_a_page_of_a_newer_release_is_refused(log: Logged) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)
    await log.metadata.write([Put(one.pages[0], b"FBEP\x00\x02 and more", None)])

    assert (await failure(log, 1)).exit_code == EXIT_USAGE


@pytest.mark.parametrize("batches", [Early(0, ()), Early(65, ((64, 10),)), Early(0, ((10**12, 10),))])
async def test_an_entry_that_can_name_no_page_is_damaged_metadata(log: Logged, batches: Early) -> None:
    await log.append(batch_bytes(2))
    manifest = await log.rig.manifest()
    entry = msgspec.structs.replace(manifest.pending[-1], batches=batches)
    await log.metadata.write([Put(AT.manifest, encode(msgspec.structs.replace(manifest, pending=(entry,))), None)])

    assert str(await failure(log, 1)).startswith("Damaged metadata: an early entry names no slice")


async def test_an_answer_from_the_past_is_no_proof_that_the_page_is_gone(log: Logged) -> None:
    await log.append(batch_bytes(2))
    (old,) = await log.metadata.get_many([AT.manifest])
    await early(log)

    class Old:
        def __getattr__(self, name: str) -> object:
            return getattr(log.metadata, name)

        async def get_many(self, wanted: list[Key]) -> list[Record | None]:
            if any(key.path.startswith(keys.EARLY_PREFIX) for key in wanted):
                return [old if key == AT.manifest else None for key in wanted]
            return list(await log.metadata.get_many(wanted))

    found = await failure(log, 1, tracer=Tracer(metadata=Old(), objects=log.objects))  # type: ignore[arg-type]

    assert found.exit_code == EXIT_UNREACHABLE
    assert "answered from the past" in str(found)


async def test_a_trace_of_an_early_page_is_the_same_in_json(log: Logged) -> None:
    await log.append(batch_bytes(2))
    (one,) = await early(log)
    await one.put_pages()
    trace = await log.tracer.trace(NAME, 0, 1)

    assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace) == trace
