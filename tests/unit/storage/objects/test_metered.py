import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import get_args

import pytest

from runtime.telemetry import Telemetry
from storage.errors import AlreadyExists, EndsEarly, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.objects.memory import MemoryObjectStore
from storage.objects.metered import OUTCOMES, MeteredObjectStore, Op
from storage.objects.port import ObjectStat, ObjectStore, UnfinishedUpload
from storage.outcomes import StoreOutcomes
from storage.vocabulary import Buffer

OPS = get_args(Op)


class StepClock:
    """Moves on by a quarter of a second each time it is read."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += 0.25
        return self._now_s

    def now_ms(self) -> int:
        return 0


class FailingObjectStore:
    """Every call raises `error`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        raise self._error

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        raise self._error

    async def stat(self, key: str) -> ObjectStat:
        raise self._error

    async def delete_many(self, keys: Sequence[str]) -> None:
        raise self._error

    async def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        yield UnfinishedUpload("a", "0", 0)
        raise self._error

    async def abort_upload(self, key: str, upload_id: str) -> None:
        raise self._error

    async def probe(self) -> None:
        raise self._error

    async def close(self) -> None:
        return None

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        yield ObjectStat("a", 1, 0)
        raise self._error


class Figures:
    def __init__(self, inner: ObjectStore) -> None:
        self._telemetry = Telemetry()
        self.outcomes = StoreOutcomes(clock=StepClock(), telemetry=self._telemetry)
        self.store = MeteredObjectStore(inner, self._telemetry, StepClock(), outcomes=self.outcomes)

    def _sample(self, name: str, **labels: str) -> float:
        """0 for a series that does not exist yet: it does from its first use on."""
        return self._telemetry.registry.get_sample_value(f"forebay_object_store_{name}", labels) or 0.0

    def requests(self) -> dict[tuple[str, str], float]:
        counted = {(op, outcome): self._sample("requests_total", op=op, outcome=outcome) for op in OPS for outcome in OUTCOMES}
        return {labels: count for labels, count in counted.items() if count}

    def seconds(self, op: str) -> float:
        return self._sample("request_duration_seconds_sum", op=op)

    def bytes(self, op: str) -> float:
        return self._sample("bytes_total", op=op)


async def call_each(store: ObjectStore) -> None:
    await store.put_if_absent("a", [b"123", memoryview(b"45")])
    await store.get_range("a", 1, 4)
    await store.stat("a")
    assert [stat.key async for stat in store.list("")] == ["a"]
    await store.delete_many(["a"])


async def test_each_call_counts_once_with_its_time_and_bytes() -> None:
    figures = Figures(MemoryObjectStore(clock=StepClock()))
    await call_each(figures.store)
    await figures.store.probe()

    assert figures.requests() == {(op, "ok"): 1.0 for op in OPS}
    assert (figures.bytes("put"), figures.bytes("get")) == (5.0, 3.0)
    assert [figures.seconds(op) for op in OPS] == [0.25, 0.25, 0.25, 0.5, 0.25]
    await figures.store.close()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound("x"), "not_found"),
        (AlreadyExists("x"), "exists"),
        (Unavailable("x"), "unavailable"),
        (OutcomeUnknown("x"), "unknown"),
    ],
)
async def test_a_call_that_fails_counts_as_what_it_raised_and_moves_no_bytes(error: StorageError, outcome: str) -> None:
    figures = Figures(FailingObjectStore(error))
    for call in (
        figures.store.put_if_absent("a", [b"123"]),
        figures.store.get_range("a", 0, 3),
        figures.store.stat("a"),
        figures.store.delete_many(["a"]),
    ):
        with pytest.raises(type(error)):
            await call

    assert figures.requests() == {(op, outcome): 1.0 for op in ("put", "get", "stat", "delete")}
    assert (figures.bytes("put"), figures.bytes("get")) == (0.0, 0.0)


async def test_a_cancelled_call_counts_as_unknown() -> None:
    figures = Figures(FailingObjectStore(asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await figures.store.put_if_absent("a", [b"123"])

    assert figures.requests() == {("put", "unknown"): 1.0}


@pytest.mark.parametrize(("error", "outcome"), [(Unavailable("x"), "unavailable"), (asyncio.CancelledError(), "unknown")])
async def test_a_listing_that_breaks_off_counts_as_what_it_raised(error: BaseException, outcome: str) -> None:
    figures = Figures(FailingObjectStore(error))
    with pytest.raises(type(error)):
        async for _ in figures.store.list(""):
            pass

    assert figures.requests() == {("list", outcome): 1.0}


async def test_a_listing_whose_reader_has_seen_enough_counts_as_ok() -> None:
    figures = Figures(FailingObjectStore(Unavailable("never reached")))
    listing = figures.store.list("")
    await anext(listing)
    assert hasattr(listing, "aclose")
    await listing.aclose()

    assert figures.requests() == {("list", "ok"): 1.0}


async def test_unfinished_uploads_count_as_a_listing_and_an_abort_as_a_delete() -> None:
    figures = Figures(FailingObjectStore(Unavailable("x")))
    with pytest.raises(Unavailable):
        async for _ in figures.store.unfinished_uploads(""):
            pass
    with pytest.raises(Unavailable):
        await figures.store.abort_upload("a", "0")

    assert figures.requests() == {("list", "unavailable"): 1.0, ("delete", "unavailable"): 1.0}


async def test_puts_and_gets_that_succeed_are_told_with_their_time() -> None:
    figures = Figures(MemoryObjectStore(clock=StepClock()))
    await call_each(figures.store)

    assert (figures.outcomes.puts.last_ok_s, figures.outcomes.gets.last_ok_s) == (0.5, 1.0)


@pytest.mark.parametrize("error", [Unavailable("no space left on device"), OutcomeUnknown("no reply"), RuntimeError("a bug of a client")])
async def test_puts_and_gets_that_fail_are_told_with_their_cause_and_size(error: Exception) -> None:
    figures = Figures(FailingObjectStore(error))
    puts, gets = figures.outcomes.puts, figures.outcomes.gets
    with pytest.raises(type(error)):
        await figures.store.put_if_absent("a", [b"123", b"45"])
    with pytest.raises(type(error)):
        await figures.store.get_range("a", 0, 3)

    assert (puts.failures, puts.error, puts.failed_bytes) == (1, str(error), 5)
    assert (gets.failures, gets.error) == (1, str(error))


@pytest.mark.parametrize("error", [NotFound("x"), AlreadyExists("x"), EndsEarly("x")])
async def test_an_answer_that_says_no_is_a_success_of_the_store(error: StorageError) -> None:
    figures = Figures(FailingObjectStore(error))
    with pytest.raises(type(error)):
        await figures.store.put_if_absent("a", [b"123"])
    with pytest.raises(type(error)):
        await figures.store.get_range("a", 0, 3)

    for outcomes in (figures.outcomes.puts, figures.outcomes.gets):
        assert (outcomes.failures, outcomes.last_ok_s is not None) == (0, True)


async def test_a_put_that_is_cancelled_at_once_says_nothing_of_the_store() -> None:
    figures = Figures(FailingObjectStore(asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await figures.store.put_if_absent("a", [b"123"])

    assert (figures.outcomes.puts.failures, figures.outcomes.puts.last_ok_s) == (0, None)
