"""What every object store does. Subclass `ObjectStoreContract`, hand it an empty store, and its tests run against that store."""

import abc
import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from storage.errors import AlreadyExists, EndsEarly, NotFound, Unavailable
from storage.objects.port import ObjectStore

ILLEGAL_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", "a/..", ".", "a/./b", "a b", "é", "a\x00", "a\n", "a" * 513, ".tmp/a"]


async def put_all(store: ObjectStore, keys: Sequence[str], *, at_once: int = 64) -> None:
    """Store `key` itself as the body of each key."""
    for start in range(0, len(keys), at_once):
        async with asyncio.TaskGroup() as group:
            for key in keys[start : start + at_once]:
                group.create_task(store.put_if_absent(key, [key.encode()]))


async def listed(store: ObjectStore, prefix: str, *, start_after: str = "") -> list[str]:
    return [stat.key async for stat in store.list(prefix, start_after=start_after)]


async def wins(store: ObjectStore, key: str, body: bytes) -> bool:
    try:
        await store.put_if_absent(key, [body])
    except AlreadyExists:
        return False
    return True


class ObjectStoreContract(abc.ABC):
    @abc.abstractmethod
    def opened(self, folder: Path) -> AbstractAsyncContextManager[ObjectStore]:
        """An empty store, closed at the end. `folder` is the test's own."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        async with self.opened(tmp_path) as store:
            yield store

    # Parts

    @pytest.mark.parametrize(("start", "end"), [(0, 700_000), (5, 700_000), (4_096, 4_097), (65_536, 131_072), (70_000, 400_001), (9, 9)])
    async def test_parts_of_a_range_are_of_about_a_size_and_memory_of_their_own(self, store: ObjectStore, start: int, end: int) -> None:
        part_bytes = 65_536
        whole = random.Random(3).randbytes(700_000)
        await store.put_if_absent("wal/1", [whole])
        parts = [memoryview(part) for part in await store.get_parts("wal/1", start, end, part_bytes=part_bytes)]

        assert b"".join(parts) == whole[start:end]
        assert all(len(part) <= 2 * part_bytes for part in parts)
        assert len(parts) == len({id(part.obj) for part in parts}) <= (end - start) // part_bytes + 2
        assert all(memoryview(part.obj).nbytes <= len(part) + 3 * 4_096 for part in parts)

    async def test_parts_of_what_is_not_there_are_asked_for_in_vain(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [bytes(200_000)])

        with pytest.raises(EndsEarly):
            await store.get_parts("wal/1", 0, 200_001, part_bytes=65_536)
        with pytest.raises(NotFound):
            await store.get_parts("wal/2", 0, 200_000, part_bytes=65_536)

    # Putting

    async def test_an_object_reads_back_as_it_was_put(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [b"first"])

        assert await store.get_range("wal/1", 0, 5) == b"first"

    async def test_parts_are_stored_one_after_the_other_whatever_they_are(self, store: ObjectStore) -> None:
        whole = random.Random(1).randbytes(300_000)
        view = memoryview(whole)
        await store.put_if_absent("wal/1", [b"", view[:100_000], bytearray(view[100_000:100_001]), b"", bytes(view[100_001:]), b""])

        assert await store.get_range("wal/1", 0, len(whole)) == whole

    async def test_thousands_of_small_parts_make_one_object(self, store: ObjectStore) -> None:
        whole = random.Random(2).randbytes(5_000 * 7)
        view = memoryview(whole)
        await store.put_if_absent("wal/1", [view[start : start + 7] for start in range(0, len(whole), 7)])

        assert await store.get_range("wal/1", 0, len(whole)) == whole

    async def test_an_object_larger_than_one_transfer_is_whole(self, store: ObjectStore) -> None:
        whole = random.Random(3).randbytes(9_000_001)
        await store.put_if_absent("wal/1", [whole])

        assert await store.get_range("wal/1", 0, len(whole)) == whole

    @pytest.mark.parametrize("parts", [[], [b""], [b"", b""]])
    async def test_an_empty_object_is_an_object(self, store: ObjectStore, parts: list[bytes]) -> None:
        await store.put_if_absent("wal/1", parts)

        assert (await store.stat("wal/1")).size_bytes == 0
        assert await store.get_range("wal/1", 0, 0) == b""
        assert await listed(store, "wal/") == ["wal/1"]

    async def test_the_second_writer_of_a_key_loses(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [b"first"])

        with pytest.raises(AlreadyExists):
            await store.put_if_absent("wal/1", [b"second and longer"])
        assert (await store.stat("wal/1")).size_bytes == 5
        assert await store.get_range("wal/1", 0, 5) == b"first"

    async def test_of_fifty_writers_of_a_key_one_wins_and_its_bytes_stay(self, store: ObjectStore) -> None:
        bodies = [f"{writer:02}".encode() * (20_000 + writer) for writer in range(50)]
        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(wins(store, "wal/raced", body)) for body in bodies]
        winners = [body for body, attempt in zip(bodies, attempts, strict=True) if attempt.result()]

        assert len(winners) == 1
        size = (await store.stat("wal/raced")).size_bytes
        assert await store.get_range("wal/raced", 0, size) == winners[0]

    async def test_a_deleted_key_may_be_written_again(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [b"first"])
        await store.delete_many(["wal/1"])
        await store.put_if_absent("wal/1", [b"second"])

        assert await store.get_range("wal/1", 0, 6) == b"second"

    @pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 100, 500, 2_000])
    async def test_a_cancelled_put_stores_all_or_nothing(self, store: ObjectStore, turns: int) -> None:
        cancelled, later = b"c" * 500_000, b"later"
        async with asyncio.TaskGroup() as group:
            put = group.create_task(store.put_if_absent("wal/1", [cancelled[:100], cancelled[100:]]))
            for _ in range(turns):
                await asyncio.sleep(0)
            put.cancel()
        expected = later if await wins(store, "wal/1", later) else cancelled

        assert (await store.stat("wal/1")).size_bytes == len(expected)
        assert await store.get_range("wal/1", 0, len(expected)) == expected

    # Reading

    async def test_a_range_is_half_open_and_may_lie_anywhere(self, store: ObjectStore) -> None:
        whole = random.Random(4).randbytes(200_000)
        await store.put_if_absent("wal/1", [whole])

        for start, end in [(0, 1), (0, 200_000), (1, 2), (65_535, 65_537), (4_096, 199_999), (199_999, 200_000)]:
            assert await store.get_range("wal/1", start, end) == whole[start:end]

    async def test_what_a_get_returns_is_read_only(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [b"first"])

        assert memoryview(await store.get_range("wal/1", 0, 5)).readonly

    @pytest.mark.parametrize(("start", "end"), [(0, 6), (4, 6), (5, 6), (100, 200), (0, 2**40)])
    async def test_a_range_past_the_end_is_unavailable(self, store: ObjectStore, start: int, end: int) -> None:
        await store.put_if_absent("wal/1", [b"first"])

        with pytest.raises(Unavailable, match="wal/1"):
            await store.get_range("wal/1", start, end)

    @pytest.mark.parametrize("key", ["absent", "wal/absent", "wal", "absent/absent", "wal/1/below"])
    async def test_a_missing_object_is_not_found(self, store: ObjectStore, key: str) -> None:
        await store.put_if_absent("wal/1", [b"first"])

        with pytest.raises(NotFound, match=key):
            await store.get_range(key, 0, 1)
        with pytest.raises(NotFound, match=key):
            await store.stat(key)

    async def test_stat_tells_size_and_time(self, store: ObjectStore) -> None:
        now_ms = SystemClock().now_ms()
        await store.put_if_absent("wal/1", [b"12345"])

        stat = await store.stat("wal/1")
        assert (stat.key, stat.size_bytes) == ("wal/1", 5)
        assert abs(stat.modified_ms - now_ms) < 600_000

    # Listing

    async def test_a_listing_says_what_stat_says(self, store: ObjectStore) -> None:
        await put_all(store, ["a", "b/c", "b/d/e"])

        assert [stat async for stat in store.list("")] == [await store.stat(key) for key in ("a", "b/c", "b/d/e")]

    async def test_objects_are_listed_in_the_byte_order_of_whole_keys(self, store: ObjectStore) -> None:
        keys = ["a-b", "a-b.c", "a.b", "a/-", "a/.b", "a/0/1", "a/b-/x", "a/b/x", "a0", "aB", "a_", "a_b/c", "ab", "B/x", "0", "z/z"]
        await put_all(store, keys)

        assert await listed(store, "") == sorted(keys, key=str.encode)

    @pytest.mark.parametrize(
        ("prefix", "found"),
        [
            ("wal/", ["wal/1", "wal/21", "wal/22/x"]),
            ("wal/2", ["wal/21", "wal/22/x"]),
            ("wal", ["wal/1", "wal/21", "wal/22/x", "walk"]),
            ("wal/22/x", ["wal/22/x"]),
            ("wal/22/", ["wal/22/x"]),
            ("wal/22/x/", []),
            ("wal/1/", []),
            ("x", []),
            ("x/y/", []),
            ("/", []),
            ("../", []),
            ("wal/../", []),
        ],
    )
    async def test_a_prefix_is_any_string(self, store: ObjectStore, prefix: str, found: list[str]) -> None:
        await put_all(store, ["segment/1", "wal/1", "wal/21", "wal/22/x", "walk"])

        assert await listed(store, prefix) == found

    @pytest.mark.parametrize(
        ("prefix", "start_after", "found"),
        [
            ("", "a/2", ["a/3/x", "a/3/y", "a0", "b"]),
            ("", "a/25", ["a/3/x", "a/3/y", "a0", "b"]),
            ("", "a/3/x", ["a/3/y", "a0", "b"]),
            ("", "a/3", ["a/3/x", "a/3/y", "a0", "b"]),
            ("", "a/3/", ["a/3/x", "a/3/y", "a0", "b"]),
            ("", "a/3/z", ["a0", "b"]),
            ("", "a/", ["a/1", "a/2", "a/3/x", "a/3/y", "a0", "b"]),
            ("", "a", ["a/1", "a/2", "a/3/x", "a/3/y", "a0", "b"]),
            ("a/", "a/3/y", []),
            ("a/3", "a/1", ["a/3/x", "a/3/y"]),
            ("a/3", "b", []),
            ("b", "a", ["b"]),
            ("", "b", []),
        ],
    )
    async def test_a_listing_starts_behind_start_after(self, store: ObjectStore, prefix: str, start_after: str, found: list[str]) -> None:
        await put_all(store, ["a/1", "a/2", "a/3/x", "a/3/y", "a0", "b"])

        assert await listed(store, prefix, start_after=start_after) == found

    async def test_keys_of_three_pages_are_listed_completely_and_can_be_resumed(self, store: ObjectStore) -> None:
        """Of S3's pages, which have a thousand."""
        keys = [f"wal/{number % 7}/{number:05}" for number in range(2_100)]
        await put_all(store, keys)
        keys.sort()

        assert await listed(store, "wal/") == keys
        assert await listed(store, "wal/", start_after=keys[1_234]) == keys[1_235:]
        assert await listed(store, "wal/3/") == [key for key in keys if key.startswith("wal/3/")]

    async def test_a_listing_may_be_left_early(self, store: ObjectStore) -> None:
        await put_all(store, ["a", "b", "c"])
        async for stat in store.list(""):
            if stat.key == "b":
                break

        assert await listed(store, "") == ["a", "b", "c"]

    async def test_objects_may_be_deleted_while_they_are_listed(self, store: ObjectStore) -> None:
        keys = [f"wal/{number:02}" for number in range(20)]
        await put_all(store, keys)
        seen = []
        async for stat in store.list("wal/"):
            seen.append(stat.key)
            await store.delete_many([stat.key])

        assert seen == keys
        assert await listed(store, "") == []

    async def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert await listed(store, "") == []

    # Deleting

    async def test_a_deleted_object_is_gone(self, store: ObjectStore) -> None:
        await put_all(store, ["wal/1", "wal/2", "wal/3"])
        await store.delete_many(["wal/1", "wal/3"])

        assert await listed(store, "") == ["wal/2"]
        with pytest.raises(NotFound):
            await store.get_range("wal/1", 0, 1)

    async def test_deleting_what_is_not_there_is_no_error(self, store: ObjectStore) -> None:
        await put_all(store, ["wal/1"])
        await store.delete_many(["wal/absent", "wal/1", "absent/folder/x", "wal", "wal/1/below", "wal/1"])
        await store.delete_many(["wal/1"])
        await store.delete_many([])

        assert await listed(store, "") == []

    async def test_more_keys_than_one_request_takes_are_deleted(self, store: ObjectStore) -> None:
        keys = [f"wal/{number:05}" for number in range(1_200)]
        await put_all(store, keys)
        await store.delete_many([*keys[:-1], *(f"wal/absent-{number}" for number in range(1_000))])

        assert await listed(store, "") == keys[-1:]

    # Unfinished uploads

    async def test_a_put_leaves_no_upload_unfinished(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [b"first"])

        assert [upload async for upload in store.unfinished_uploads("")] == []
        assert [upload async for upload in store.unfinished_uploads("wal/", start_after="wal/0")] == []

    async def test_aborting_an_upload_that_is_not_there_is_no_error_and_an_object_stays(self, store: ObjectStore) -> None:
        await store.put_if_absent("wal/1", [b"first"])
        await store.abort_upload("wal/1", "0a7b5c62-6ad8-4a35-9f2e-2f4a5d0f3c11")
        await store.abort_upload("wal/2", "0a7b5c62-6ad8-4a35-9f2e-2f4a5d0f3c11")

        assert await store.get_range("wal/1", 0, 5) == b"first"

    # Names, probe

    @pytest.mark.parametrize("key", ILLEGAL_KEYS)
    async def test_a_key_that_may_not_name_an_object_is_a_programmer_error(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(ValueError, match="not the name of an object"):
            await store.put_if_absent(key, [b"x"])
        with pytest.raises(ValueError, match="not the name of an object"):
            await store.get_range(key, 0, 1)
        with pytest.raises(ValueError, match="not the name of an object"):
            await store.stat(key)
        with pytest.raises(ValueError, match="not the name of an object"):
            await store.delete_many([key])
        with pytest.raises(ValueError, match="not the name of an object"):
            await store.abort_upload(key, "0")

    async def test_the_longest_key_is_an_object(self, store: ObjectStore) -> None:
        key = f"{'a' * 200}/{'b' * 200}/{'c' * 110}"
        await store.put_if_absent(key, [b"x"])

        assert await listed(store, "a") == [key]

    async def test_a_probe_leaves_nothing_behind(self, store: ObjectStore) -> None:
        await store.probe()
        await store.probe()

        assert await listed(store, "") == []

    async def test_concurrent_probes_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(store.probe())

        assert await listed(store, "") == []
