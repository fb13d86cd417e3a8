"""The port's writes and ranges in Oxia's words: writes as one message, its answer as results of the port's ops. Pure.

The message has no order between kinds: Oxia applies puts, then deletes, then range deletes, each in the order given, as the port says.
So writes that wait for the same shard may travel together when doing so is the same as carrying them out one after the other:
no op of a later write may be of a kind that comes before one of an earlier write.

Ranges of keys mean the same in every key sorting that Oxia has had if they are under one parent: there are no others.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from storage.limits import METADATA_VALUE_BYTES_MAX, WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.port import Delete, DeleteRange, OpResult, Put, Status, WriteOp

_STATUS: Final = {
    wire.OK: Status.OK,
    wire.KEY_NOT_FOUND: Status.KEY_NOT_FOUND,
    wire.UNEXPECTED_VERSION_ID: Status.UNEXPECTED_VERSION,
    wire.SESSION_DOES_NOT_EXIST: Status.SESSION_DOES_NOT_EXIST,
}
_OK: Final = OpResult(Status.OK, None)
_RANK: Final[dict[type, int]] = {Put: 0, Delete: 1, DeleteRange: 2}


def parent_of(path: str) -> str:
    """Up to its last slash; empty when there is none."""
    return path.rpartition("/")[0]


def is_empty(start: str, end: str) -> bool:
    """Whether [start, end) has no keys whatever is stored: Oxia is not asked what it does with a range whose end comes first."""
    assert start.count("/") == end.count("/"), f"a range has one depth: {start=} {end=}"
    assert parent_of(start) == parent_of(end), f"a range stays under one parent: {start=} {end=}"
    # Code points sort as their UTF-8 does.
    return start >= end


_RESULT_WITHOUT_VERSION: Final = {number: OpResult(status, None) for number, status in _STATUS.items()}


class UnreadableAnswer(Exception):
    """The answer does not belong to the request."""


class Write(NamedTuple):
    """A write that was found to be legal."""

    ops: Sequence[WriteOp]
    shard: int
    size_bytes: int
    sessions: tuple[int, ...]
    rank_min: int
    rank_max: int


def check_ops(ops: Sequence[WriteOp], shard_of: Callable[[str], int]) -> Write:
    """What is wrong with it is a programmer's error."""
    assert len(ops) <= WRITE_REQUEST_OPS_MAX, f"too many ops in one request: {len(ops)}"
    partition_key = _partition_key_of(ops[0])
    shard = shard_of(partition_key)
    size_bytes, rank_min, rank_max = 0, 2, 0
    sessions: list[int] = []
    for op in ops:
        rank = _RANK[type(op)]
        rank_min = min(rank, rank_min)
        rank_max = max(rank, rank_max)
        if isinstance(op, Put):
            key, value = op.key, op.value
            assert len(value) <= METADATA_VALUE_BYTES_MAX, f"value too large: key={key.path!r} bytes={len(value)}"
            size_bytes += len(value)
            if op.session is not None:
                sessions.append(op.session)
        elif isinstance(op, DeleteRange):
            key = op.start
            is_empty(key.path, op.end)
            size_bytes += len(op.end.encode())
        else:
            key = op.key
        # Encoded here, so that what cannot be encoded fails its own caller.
        size_bytes += len(key.path.encode())
        other = key.partition_key
        assert other == partition_key or shard_of(other) == shard, f"one write, one shard: {partition_key!r} {other!r}"
    assert size_bytes <= WRITE_REQUEST_BYTES_MAX, f"request too large: bytes={size_bytes} ops={len(ops)}"
    return Write(ops, shard, size_bytes, tuple(sessions), rank_min, rank_max)


class Together:
    """Writes to one shard that travel in one request."""

    def __init__(self) -> None:
        self._ops = self._size_bytes = self._rank = 0

    def admits(self, write: Write) -> bool:
        """Whether `write` may travel along, behind those admitted so far; the first one always may."""
        ops, size_bytes = self._ops + len(write.ops), self._size_bytes + write.size_bytes
        if self._ops and (ops > WRITE_REQUEST_OPS_MAX or size_bytes > WRITE_REQUEST_BYTES_MAX or write.rank_min < self._rank):
            return False
        self._ops, self._size_bytes, self._rank = ops, size_bytes, write.rank_max
        return True


def encode(ops: Sequence[WriteOp], *, shard: int, session_id_of: Callable[[int], int], client_identity: str) -> wire.WriteRequest:
    """`session_id_of` turns a session of the port into the one that Oxia has on `shard`."""
    request = wire.WriteRequest(shard=shard)
    add_put = request.puts.add
    for op in ops:
        if isinstance(op, Put):
            path, partition_key = op.key
            put = add_put(key=path, value=op.value, expected_version_id=op.expected_version, partition_key=partition_key)
            if op.session is not None:
                put.session_id = session_id_of(op.session)
                put.client_identity = client_identity
        elif isinstance(op, Delete):
            request.deletes.add(key=op.key.path, expected_version_id=op.expected_version)
        elif not is_empty(op.start.path, op.end):
            request.delete_ranges.add(start_inclusive=op.start.path, end_exclusive=op.end)
    return request


def decode(ops: Sequence[WriteOp], request: wire.WriteRequest, response: wire.WriteResponse) -> tuple[OpResult, ...]:
    """One result per op, in the order of the ops. Raise `UnreadableAnswer`."""
    if (
        len(response.puts) != len(request.puts)
        or len(response.deletes) != len(request.deletes)
        or len(response.delete_ranges) != len(request.delete_ranges)
    ):
        raise UnreadableAnswer(f"not one result per op: {len(ops)} ops")
    try:
        puts = [
            OpResult(Status.OK, put.version.version_id) if put.status == wire.OK else _RESULT_WITHOUT_VERSION[put.status]
            for put in response.puts
        ]
        if len(puts) == len(ops):
            return tuple(puts)
        next_put = iter(puts)
        next_delete = iter([_RESULT_WITHOUT_VERSION[delete.status] for delete in response.deletes])
        # A range delete has no condition and cannot fail on its own.
        return tuple(next(next_put) if isinstance(op, Put) else next(next_delete) if isinstance(op, Delete) else _OK for op in ops)
    except KeyError as error:
        raise UnreadableAnswer(f"unknown status: {error}") from error


def _partition_key_of(op: WriteOp) -> str:
    return op.start.partition_key if isinstance(op, DeleteRange) else op.key.partition_key
