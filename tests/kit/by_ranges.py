"""What stores of tests do without: parts are cut from what their `get_range` gives."""

from collections.abc import Sequence
from typing import Any

from storage.recordbatch import in_parts
from storage.vocabulary import Buffer


class PartsByRange:
    get_range: Any

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        return in_parts(await self.get_range(key, start, end), start, part_bytes)
