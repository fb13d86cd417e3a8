"""The order of keys (see port.py) as byte strings that compare the same way, and a sorted set of such strings.

Two bytes of depth, then the path with `/` as 0xff. UTF-8 never contains 0xff, so the encoding can be undone, and keys that share a path
prefix and a depth lie side by side.
"""

from bisect import bisect_left, bisect_right, insort
from typing import Final

DEPTH_BYTES: Final = 2


def encode(path: str) -> bytes:
    return path.count("/").to_bytes(DEPTH_BYTES, "big") + path.encode().replace(b"/", b"\xff")


def decode(encoded: bytes) -> str:
    return encoded[DEPTH_BYTES:].replace(b"\xff", b"/").decode()


def range_bounds(start: str, end: str) -> tuple[bytes, bytes]:
    """The encoded bounds of [start, end), which must not leave the depth of `start`."""
    assert start.count("/") == end.count("/"), f"a range has one depth: start={start!r} end={end!r}"
    return encode(start), encode(end)


def ceiling_bounds(path: str, within: str) -> tuple[bytes, bytes]:
    """Where to start looking, and the prefix that the first key found there must have: if it has not, no key has."""
    seek = encode(path)
    prefix = seek[:DEPTH_BYTES] + within.encode().replace(b"/", b"\xff")
    return max(seek, prefix), prefix


CHUNK_KEYS_MAX: Final = 1_024


class SortedKeys:
    """A sorted set. The caller knows what is in it: only absent keys are added, only present ones removed."""

    __slots__ = ("_chunk_keys_max", "_chunks", "_firsts")

    def __init__(self, *, chunk_keys_max: int = CHUNK_KEYS_MAX) -> None:
        self._chunk_keys_max = chunk_keys_max
        self._chunks: list[list[bytes]] = []
        self._firsts: list[bytes] = []

    def add(self, key: bytes) -> None:
        if not self._chunks:
            self._chunks.append([key])
            self._firsts.append(key)
            return
        at = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = self._chunks[at]
        insort(chunk, key)
        self._firsts[at] = chunk[0]
        if len(chunk) > self._chunk_keys_max:
            middle = self._chunk_keys_max // 2
            tail = chunk[middle:]
            del chunk[middle:]
            self._chunks.insert(at + 1, tail)
            self._firsts.insert(at + 1, tail[0])

    def remove(self, key: bytes) -> None:
        at = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[at]
        position = bisect_left(chunk, key)
        assert chunk[position] == key, "only keys that are present are removed"
        del chunk[position]
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at]
            del self._firsts[at]

    def ceiling(self, key: bytes) -> bytes | None:
        """The lowest key >= `key`."""
        found = self.between(key, None, keys_max=1)
        return found[0] if found else None

    def between(self, start: bytes, end: bytes | None, *, keys_max: int) -> list[bytes]:
        """The first `keys_max` keys of [start, end), in order; `end` None: no upper bound."""
        at = max(bisect_right(self._firsts, start) - 1, 0)
        found: list[bytes] = []
        while at < len(self._chunks) and len(found) < keys_max:
            chunk = self._chunks[at]
            first = bisect_left(chunk, start)
            last = len(chunk) if end is None else bisect_left(chunk, end)
            found += chunk[first : min(last, first + keys_max - len(found))]
            if last < len(chunk):
                break
            at += 1
        return found
