"""Records of the catalog in the metadata store: one JSON object each, with the number of its format.

`encode` and `decode` know the format, `write_one` and `write_each` send conditional writes, `SharedReads` lets concurrent questions share
one read.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from runtime.ids import Entropy
from runtime.turns import Turns
from storage.errors import Corrupt, OutcomeUnknown, StorageError, Unavailable
from storage.formats.levels import UNDECODABLE, newer, undecodable
from storage.limits import WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata.port import Applied, DeleteRange, Key, MetadataStore, NotApplied, OpResult, Put, Unknown, WriteOp

_CHECKSUM: Final = struct.Struct(">I")
ATTEMPTS_MAX: Final = 12
_PAUSE_FIRST_S: Final = 0.005
_PAUSE_MAX_S: Final = 0.5
_OP_OVERHEAD_BYTES: Final = 64
"""Framing of one operation in a request, estimated from above."""

_encoder = msgspec.json.Encoder()
OpOutcome = OpResult | NotApplied | Unknown
K = TypeVar("K")
V = TypeVar("V")


class HasFormat(Protocol):
    @property
    def fmt(self) -> int: ...


R = TypeVar("R", bound=HasFormat)


def encode(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record)


def decode(decoder: msgspec.json.Decoder[R], data: bytes, *, known: int, path: str) -> R:
    """Raise `IncompatibleFormat` for a format above `known`, and for what a newer release put into one of ours; `Corrupt` for anything that
    is no such record.
    """
    try:
        record = decoder.decode(data)
    except UNDECODABLE as error:
        raise undecodable(error, data, known=known, path=path) from error
    if record.fmt > known:
        raise newer(record.fmt, known=known, path=path)
    return record


def encode_checked(record: msgspec.Struct) -> bytes:
    """As `encode`, with a CRC-32C behind it: for objects, which others hand on."""
    body = encode(record)
    return body + _CHECKSUM.pack(crc32c(body))


def decode_checked(decoder: msgspec.json.Decoder[R], data: bytes, *, known: int, path: str) -> R:
    """As `decode`, of what `encode_checked` made."""
    body = data[: -_CHECKSUM.size]
    if len(data) <= _CHECKSUM.size or data[-_CHECKSUM.size :] != _CHECKSUM.pack(crc32c(body)):
        raise Corrupt(f"checksum mismatch: key={path!r} bytes={len(data)}")
    return decode(decoder, body, known=known, path=path)


async def write_one(metadata: MetadataStore, op: WriteOp) -> OpOutcome:
    """Send `op` alone; return its outcome."""
    (outcome,) = await write_each(metadata, [op])
    return outcome


async def write_each(metadata: MetadataStore, ops: Sequence[WriteOp]) -> list[OpOutcome]:
    """Send `ops`; return the outcome of each, in order. They may lie on any shards and are not one atomic batch."""
    outcomes: list[OpOutcome | None] = [None] * len(ops)
    for positions in _requests(metadata, ops):
        outcome = await metadata.write([ops[position] for position in positions])
        for index, position in enumerate(positions):
            outcomes[position] = outcome.results[index] if isinstance(outcome, Applied) else outcome
    return [outcome for outcome in outcomes if outcome is not None]


async def pause(attempt: int, entropy: Entropy) -> None:
    """Between attempts `attempt` and `attempt` + 1: a random time up to 5 ms, 10 ms, 20 ms … half a second."""
    ceiling_s = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2**attempt)
    await asyncio.sleep(ceiling_s * int.from_bytes(entropy(2), "big") / 0xFFFF)


def given_up(action: str, *, unknown: Unknown | None, reason: str, attempts: int = ATTEMPTS_MAX) -> OutcomeUnknown | Unavailable:
    """The error to raise when the attempts are used up: it must say so if any of them may yet have worked."""
    if unknown is not None:
        return OutcomeUnknown(f"{action}: outcome unknown after {attempts} attempts: cause={unknown.reason!r}")
    return Unavailable(f"{action}: not done in {attempts} attempts: cause={reason!r}")


@dataclass(slots=True)
class _SharedRead(Generic[K, V]):
    keys: dict[K, None]
    done: asyncio.Future[dict[K, V] | StorageError | None]
    """None: whoever ran it was cancelled, or failed in a way that is its own business."""


class SharedReads(Generic[K, V]):
    """`read` is given the keys of all questions of a round, without repeats, and answers every one of them.

    No answer comes from a read that began before its question: at most one read runs, and questions that arrive meanwhile form the next.
    """

    def __init__(self, read: Callable[[list[K]], Awaitable[dict[K, V]]]) -> None:
        self._read = read
        self._open: _SharedRead[K, V] | None = None
        self._running: asyncio.Future[dict[K, V] | StorageError | None] | None = None

    async def ask(self, keys: Iterable[K]) -> dict[K, V]:
        """The answers to `keys`. Raises what `read` raises. Cancelling one asker costs the others at most a new round."""
        wanted = dict.fromkeys(keys)
        while self._open is not None:
            joined = self._open
            joined.keys.update(wanted)
            await asyncio.wait({joined.done})
            outcome = joined.done.result()
            if isinstance(outcome, StorageError):
                raise outcome
            if outcome is not None:
                return await Turns().by_key(outcome.__getitem__, wanted)
        return await self._run(wanted)

    async def _run(self, wanted: dict[K, None]) -> dict[K, V]:
        current = _SharedRead[K, V](dict(wanted), asyncio.get_running_loop().create_future())
        previous, self._running = self._running, current.done
        self._open = current
        outcome: dict[K, V] | StorageError | None = None
        try:
            if previous is not None:
                await asyncio.wait({previous})
            self._open = None
            outcome = await self._read(list(current.keys))
        except StorageError as error:
            outcome = error
            raise
        finally:
            if self._open is current:
                self._open = None
            if self._running is current.done:
                # Cancelled while it waited its turn: the one before it may still be reading.
                self._running = previous if previous is not None and not previous.done() else None
            current.done.set_result(outcome)
        if len(outcome) == len(wanted):
            return outcome
        return await Turns().by_key(outcome.__getitem__, wanted)


def _requests(metadata: MetadataStore, ops: Sequence[WriteOp]) -> Iterator[list[int]]:
    """Positions of `ops` that travel together: one shard each, within the bounds of a request."""
    by_shard: dict[int, list[int]] = {}
    for position, op in enumerate(ops):
        by_shard.setdefault(metadata.shard_of(_key(op).partition_key), []).append(position)
    for positions in by_shard.values():
        request: list[int] = []
        size_bytes = 0
        for position in positions:
            op_bytes = _size_bytes(ops[position])
            if request and (len(request) == WRITE_REQUEST_OPS_MAX or size_bytes + op_bytes > WRITE_REQUEST_BYTES_MAX):
                yield request
                request, size_bytes = [], 0
            request.append(position)
            size_bytes += op_bytes
        yield request


def _key(op: WriteOp) -> Key:
    return op.start if isinstance(op, DeleteRange) else op.key


def _size_bytes(op: WriteOp) -> int:
    key = _key(op)
    return len(key.path) + len(key.partition_key) + _OP_OVERHEAD_BYTES + (len(op.value) if isinstance(op, Put) else 0)
