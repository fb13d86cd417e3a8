"""Uploads: the same bytes on every try, and one's own object recognised after a lost reply."""

import random

import pytest

from runtime.clock import SystemClock
from storage.errors import OutcomeUnknown, Unavailable
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.uploads import Uploader
from storage.objects.memory import MemoryObjectStore


class Flaky(MemoryObjectStore):
    """Each put meets the next of these: "refused" (nothing happened), "lost" (it happened, the reply did not come), or goes well."""

    def __init__(self, *faults: str) -> None:
        super().__init__(clock=SystemClock())
        self.faults = list(faults)
        self.tries = 0

    async def put_if_absent(self, key: str, parts: object) -> None:
        self.tries += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            raise Unavailable("slow down")
        await super().put_if_absent(key, parts)  # type: ignore[arg-type]
        if fault == "lost":
            raise OutcomeUnknown("no reply")


def uploader(store: MemoryObjectStore, *, upload_timeout_s: float = DEFAULT_LIMITS.upload_timeout_s) -> Uploader:
    limits = LogLimits(upload_pause_s=0.001, upload_timeout_s=upload_timeout_s)
    return Uploader(objects=store, clock=SystemClock(), chance=random.Random(1), limits=limits)


def always() -> bool:
    return True


@pytest.mark.parametrize("faults", [(), ("refused",), ("lost",), ("refused", "lost"), ("refused", "refused", "lost")])
async def test_an_object_is_stored_whatever_becomes_of_the_first_tries(faults: tuple[str, ...]) -> None:
    store = Flaky(*faults)

    await uploader(store).upload("wal/1", [b"one", b"two"], is_awaited=always)

    assert await store.get_range("wal/1", 0, 6) == b"onetwo"


async def test_an_object_of_another_size_under_the_name_is_not_taken_for_ours() -> None:
    store = Flaky()
    await store.put_if_absent("wal/1", [b"something else"])

    with pytest.raises(Unavailable, match="another object has the name"):
        await uploader(store).upload("wal/1", [b"ours"], is_awaited=always)


async def test_it_gives_up_in_time_and_says_why() -> None:
    store = Flaky(*["refused"] * 1_000)

    with pytest.raises(Unavailable, match="slow down"):
        await uploader(store, upload_timeout_s=0.05).upload("wal/1", [b"x"], is_awaited=always)
    assert 1 < store.tries < 1_000


async def test_what_nobody_waits_for_any_more_is_not_tried_again() -> None:
    store = Flaky(*["refused"] * 1_000)

    with pytest.raises(Unavailable, match="slow down"):
        await uploader(store).upload("wal/1", [b"x"], is_awaited=lambda: store.tries < 2)

    assert store.tries == 2
