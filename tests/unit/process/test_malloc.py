import asyncio
import contextlib
import errno
import platform
from collections.abc import Iterator

import pytest

from process import malloc
from runtime.blocking import InlineBlocking


def test_the_four_parameters_are_set() -> None:
    calls: list[tuple[int, int]] = []

    def accept(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return 1

    tuned = malloc.tune(mallopt=accept)

    assert tuned
    assert calls == [(-3, 64 * 2**20), (-1, 512 * 2**20), (-2, 64 * 2**20), (-8, 1)]


def test_a_refusal_is_told() -> None:
    assert not malloc.tune(mallopt=lambda parameter, value: int(parameter != -3))


def test_nothing_happens_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))

    assert not malloc.tune()


async def test_memory_is_given_back_when_more_is_resident_than_should_be_and_only_then() -> None:
    seen: list[int | str] = []
    resident: Iterator[int] = iter([99, 100, 101, 100, 102])
    done = asyncio.Event()

    def rss_bytes() -> int:
        found = next(resident, None)
        if found is None:
            done.set()
            return 0
        seen.append(found)
        return found

    trimming = malloc.Trimming(
        bytes_max=100,
        blocking=InlineBlocking(),
        rss_bytes=rss_bytes,
        trim=lambda: seen.append("trim"),
        check_s=0.0,
        trim_pause_s=0.0,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(trimming.run())
        await done.wait()
        task.cancel()

    assert seen == [99, 100, 101, "trim", 100, 102, "trim"]


async def test_who_cannot_look_for_want_of_descriptors_looks_again_later() -> None:
    trimmed = asyncio.Event()
    looks = iter([OSError(errno.EMFILE, "Too many open files"), 101])

    def rss_bytes() -> int:
        seen = next(looks, 0)
        if isinstance(seen, OSError):
            raise seen
        return seen

    trimming = malloc.Trimming(bytes_max=100, blocking=InlineBlocking(), rss_bytes=rss_bytes, trim=trimmed.set, check_s=0.0)
    async with asyncio.TaskGroup() as group, asyncio.timeout(25):
        task = group.create_task(trimming.run())
        await trimmed.wait()
        task.cancel()


async def test_what_was_freed_between_what_lives_leaves_the_process() -> None:
    """With the real allocator: a pile of buffers goes, and every hundredth stays."""
    blocking = InlineBlocking()
    before = malloc._resident_bytes()
    pile = [bytearray(100_000) for _ in range(1_000)]
    kept = pile[::100]
    held = malloc._resident_bytes() - before
    pile.clear()
    trimming = malloc.Trimming(bytes_max=0, blocking=blocking)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await trimming.run()

    assert len(kept) == 10
    assert malloc._resident_bytes() - before < held / 2
