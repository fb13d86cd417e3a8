"""The metadata store: small versioned records, conditional writes, sessions, hints, as in Oxia (docs/internals/design/keys.md#the-port).

Keys are `/`-separated. A key lives on the shard of its partition key; all keys of one write are on one shard.
A range stays under one parent: both bounds of every range are equal up to their last slash (`children_of` makes them), and so are a key
and the `within` of its ceiling. Under one parent the direct children sort by bytes, before or apart from all that is deeper, in every store
and version of Oxia; between parents Oxia sorts component by component up to 0.14, by depth from 0.15 on, and nobody may depend on it.
Version ids are per shard, grow with every successful put, and are never used twice, not even for a key that was deleted.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol, runtime_checkable

ABSENT: Final = -1
"""As `expected_version`: the key must not exist."""


class Key(NamedTuple):
    """A key and the partition key that decides its shard."""

    path: str
    partition_key: str


class Record(NamedTuple):
    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Store `value`. `expected_version`: None (any), ABSENT, or a version that must be current.

    `session`: the record is ephemeral and goes with that session; a dead session makes the put fail.
    """

    key: Key
    value: bytes
    expected_version: int | None
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    key: Key
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete the keys in [start, end), children of one parent. At most 1,000 keys should match: the store does it in one step."""

    start: Key
    end: str


WriteOp = Put | Delete | DeleteRange


class Status(Enum):
    OK = "ok"
    UNEXPECTED_VERSION = "unexpected_version"
    KEY_NOT_FOUND = "key_not_found"  # delete of an absent key
    SESSION_DOES_NOT_EXIST = "session_does_not_exist"


class OpResult(NamedTuple):
    status: Status
    version: int | None
    """The version a successful put got; None for everything else."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The request was carried out: one result per op, in order. A failed condition failed its own op alone."""

    results: tuple[OpResult, ...]


@dataclass(frozen=True, slots=True)
class NotApplied:
    """Certainly nothing happened and nothing will."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have been applied, or may yet be. Read back before writing again."""

    reason: str


WriteOutcome = Applied | NotApplied | Unknown


KeyChange = tuple[str, int | None]
"""The path of a key that changed, and the version that a put gave it; None where it was deleted, or where nobody tells the version."""

OnChange = Callable[[str, int | None], None]


class Session(Protocol):
    """Keeps its ephemeral records alive by itself until closed or lost."""

    @property
    def session_id(self) -> int: ...

    @property
    def is_lost(self) -> bool:
        """True once the store has (or may have) ended it; never becomes false again."""
        ...

    async def wait_lost(self) -> None:
        """Return when the session is lost."""
        ...

    async def close(self) -> None:
        """End it; its ephemeral records are gone when this returns."""
        ...


class Subscription(Protocol):
    def cancel(self) -> None:
        """No call-backs after this."""
        ...


class MetadataStore(Protocol):
    """Reads raise `Unavailable`; they may be stale only where a deposed leader answers, so decide by condition, not by read."""

    def shard_of(self, partition_key: str) -> int: ...

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        """Apply puts, then deletes, then range deletes, each kind in the order given, as one durable batch on one shard.

        Later conditions see earlier ops of the same batch. Other requests see all of it or nothing. Never raises for the
        world's faults: they are `NotApplied` or `Unknown`. Cancelled: unknown.
        """
        ...

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        """The records as they are at some moment after the call, in the order asked for."""
        ...

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        """The record with the lowest key >= `key` that starts with `within` and has the parent of `key`; None if there is none."""
        ...

    def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        """Records of [start, end) on the shard of `start`, in key order, each as it is when it is read."""
        ...

    async def list(self, start: Key, end: str) -> list[str]:
        """The keys of [start, end) on the shard of `start`, in order."""
        ...

    async def open_session(self, *, timeout_ms: int) -> Session:
        """A session that ends `timeout_ms` after its last keep-alive (at least 2,000), or at once when its process is known dead."""
        ...

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        """Call `callback(path, version)` on the loop some time after a key under `prefix` changed (`KeyChange`). Hints: some may be missing
        or repeated (I10).
        """
        ...

    async def probe(self) -> None:
        """One cheap read. Raise `Unavailable` with cause and fix in the message."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class TellsTime(Protocol):
    """What a metadata store can do beside, if it has a clock of its own, on another machine."""

    async def put_ms(self, key: Key) -> int | None:
        """When the record was put last, by the clock of the server that put it; None if there is none. Raise `Unavailable`."""
        ...


def sort_key(path: str) -> tuple[int, bytes]:
    """An order of all keys, for stores of our own: by depth (number of slashes) first, then by bytes with `/` counting as 0xff."""
    return path.count("/"), path.encode().replace(b"/", b"\xff")


def children_of(prefix: str) -> tuple[str, str]:
    """Bounds that hold `prefix/x` for every x of `[0-9A-Za-z._-]*`: `~` sorts above all of these."""
    return f"{prefix}/", f"{prefix}/~"
