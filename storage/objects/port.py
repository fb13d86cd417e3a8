"""The object store: immutable blobs under names that are written once.

Keys are relative, `/`-separated, of `[A-Za-z0-9._/-]`, at most 512 characters, and no key is a path prefix of another.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from storage.vocabulary import Buffer


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
