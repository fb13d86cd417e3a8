"""The object store: immutable blobs under names that are written once, and which names every store accepts.

Keys are relative, `/`-separated, of `[A-Za-z0-9._/-]`, at most 512 characters, and no key is a path prefix of another.
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

from storage.vocabulary import Buffer

KEY_LENGTH_MAX: Final = 512
TEMPORARY_FOLDER: Final = ".tmp"
"""First segment that no key has: room for a store's own files beside the objects."""
PROBES: Final = ".probe/"
"""What is put to see whether puts succeed begins so, and no other object."""
MARKERS: Final = "forebay-"
"""Objects that say of which cluster a store is, and of which state of its metadata, begin so, and no other object."""
MARKER: Final = f"{MARKERS}cluster.json"
"""The object that says whose the store is (storage/catalog/identity.py)."""
# A segment is a file name on a disk: at most 255 bytes, and not "." or "..".
_SEGMENT: Final = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]{1,255}"
_KEY: Final = re.compile(rf"(?!\.tmp(?:/|\Z)){_SEGMENT}(?:/{_SEGMENT})*\Z")
_SEGMENT_ALONE: Final = re.compile(rf"{_SEGMENT}\Z")


def is_key(text: str) -> bool:
    return len(text) <= KEY_LENGTH_MAX and _KEY.match(text) is not None


def is_segment(text: str) -> bool:
    return _SEGMENT_ALONE.match(text) is not None


def check_key(key: str) -> None:
    """Raise ValueError, a programmer error, if `key` may not name an object: it could lead out of the store."""
    if not is_key(key):
        raise ValueError(f"not the name of an object: key={key!r}")


class ObjectStat(NamedTuple):
    key: str
    size_bytes: int
    modified_ms: int


class UnfinishedUpload(NamedTuple):
    """An upload in parts that was begun, and neither finished nor aborted. `begun_ms` is by the store's clock."""

    key: str
    upload_id: str
    begun_ms: int


class ObjectStore(Protocol):
    """Every method may be cancelled; a cancelled put or delete may still take effect.

    Errors: `Unavailable` (nothing happened, or a read failed), `OutcomeUnknown` (a put or delete may have happened),
    `Corrupt` is never raised here: bodies are opaque.
    """

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store the concatenation of `parts`; when this returns it is durable. Readers see all of it or nothing.

        The parts must not change until this returns. Raise `AlreadyExists` if `key` is taken (its bytes stay).
        """
        ...

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """Bytes [start, end), which nobody changes. Raise `NotFound` if there is no such object, `EndsEarly` if it ends before `end`."""
        ...

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        """As `get_range`, with one request, in parts of at most twice `part_bytes`: each is memory of its own."""
        ...

    async def stat(self, key: str) -> ObjectStat:
        """Raise `NotFound` if there is no such object."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """Objects whose key starts with `prefix` (any string) and is greater than `start_after`, in byte order of keys.

        Nothing that matters may depend on the list being complete (I10).
        """
        ...

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete; absent keys are no error. The change is durable when this returns."""
        ...

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        """Unfinished uploads of keys that start with `prefix` and are greater than `start_after`, in byte order of keys.

        Some uploads of a key that has several may be missing; they show once the others are gone. A store that takes each object in one
        piece has none.
        """
        ...

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Remove the parts of an upload: whoever still puts parts, or finishes it, fails then. An upload that was finished or aborted
        already is no error, and an object stays as it is.
        """
        ...

    async def probe(self) -> None:
        """Write, read back and delete a small object under `.probe/`. Raise `Unavailable` with cause and fix in the message."""
        ...

    async def close(self) -> None: ...


async def no_uploads() -> AsyncIterator[UnfinishedUpload]:
    """The unfinished uploads of a store that takes each object in one piece."""
    none: tuple[UnfinishedUpload, ...] = ()
    for upload in none:
        yield upload
