from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStore
from tests.kit.objects_contract import ObjectStoreContract


class TestMemoryObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[ObjectStore]:
        store = MemoryObjectStore(clock=SystemClock())
        yield store
        await store.close()

    @pytest.mark.parametrize("key", ["a", "a/b", "a/b/c/d"])
    async def test_one_name_is_never_an_object_and_a_folder(self, store: ObjectStore, key: str) -> None:
        await store.put_if_absent("a/b/c", [b"x"])
        await store.put_if_absent("a/b-c", [b"x"])

        with pytest.raises(ValueError, match="an object"):
            await store.put_if_absent(key, [b"y"])
