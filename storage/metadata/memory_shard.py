"""One shard of the memory store: records, their order, and the version counter. No awaits, no clock."""

from collections.abc import Callable, Sequence

from storage.limits import METADATA_VALUE_BYTES_MAX
from storage.metadata import key_order
from storage.metadata.key_order import SortedKeys
from storage.metadata.port import ABSENT, Delete, DeleteRange, KeyChange, OpResult, Put, Record, Status, WriteOp

UNEXPECTED_VERSION = OpResult(Status.UNEXPECTED_VERSION, None)
KEY_NOT_FOUND = OpResult(Status.KEY_NOT_FOUND, None)
SESSION_DOES_NOT_EXIST = OpResult(Status.SESSION_DOES_NOT_EXIST, None)
DELETED = OpResult(Status.OK, None)

_KINDS = (Put, Delete, DeleteRange)


class Shard:
    """Applies requests one after the other; nobody sees a request half applied, since nothing here awaits."""

    __slots__ = ("_order", "ephemeral", "records", "version")

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.ephemeral: dict[str, int] = {}
        """path → session, for the records that have one."""
        self.version = 0
        self._order = SortedKeys()

    def copy(self) -> "Shard":
        """Another shard that holds the same."""
        other = Shard()
        other.put_back(self)
        return other

    def put_back(self, copy: "Shard") -> None:
        """Hold what `copy` does, and nothing else: as a store that was put back to a copy."""
        self.records, self.ephemeral, self.version = dict(copy.records), dict(copy.ephemeral), copy.version
        self._order = SortedKeys()
        for path in self.records:
            self._order.add(key_order.encode(path))

    def apply(
        self, ops: Sequence[WriteOp], has_session: Callable[[int], bool], changed: Callable[[Sequence[KeyChange]], None] | None
    ) -> tuple[OpResult, ...]:
        """Puts, then deletes, then range deletes; the results in the order of `ops`. `changed` hears of every change."""
        if len(ops) == 1 and type(ops[0]) is Put:
            return (self._put(ops[0], has_session, changed),)
        results: dict[int, OpResult] = {}
        for kind in _KINDS:
            for place, op in enumerate(ops):
                if type(op) is not kind:
                    continue
                match op:
                    case Put():
                        results[place] = self._put(op, has_session, changed)
                    case Delete():
                        results[place] = self._delete(op, changed)
                    case DeleteRange():
                        results[place] = self._delete_range(op, changed)
        return tuple(results[place] for place in range(len(ops)))

    def _put(self, op: Put, has_session: Callable[[int], bool], changed: Callable[[Sequence[KeyChange]], None] | None) -> OpResult:
        assert len(op.value) <= METADATA_VALUE_BYTES_MAX, f"value too large: key={op.key.path!r} bytes={len(op.value)}"
        path = op.key.path
        record = self.records.get(path)
        expected = op.expected_version
        if expected is not None and expected != (ABSENT if record is None else record.version):
            return UNEXPECTED_VERSION
        if op.session is not None and not has_session(op.session):
            return SESSION_DOES_NOT_EXIST
        if record is None:
            self._order.add(key_order.encode(path))
        self.version += 1
        self.records[path] = Record(path, op.value, self.version)
        if op.session is not None:
            self.ephemeral[path] = op.session
        elif self.ephemeral:
            # As in Oxia, the last put decides whose record it is: one without a session makes it a plain one.
            self.ephemeral.pop(path, None)
        if changed is not None:
            changed(((path, self.version),))
        return OpResult(Status.OK, self.version)

    def _delete(self, op: Delete, changed: Callable[[Sequence[KeyChange]], None] | None) -> OpResult:
        record = self.records.get(op.key.path)
        if op.expected_version is not None and op.expected_version != (ABSENT if record is None else record.version):
            return UNEXPECTED_VERSION
        if record is None:
            return KEY_NOT_FOUND
        self.remove((op.key.path,))
        if changed is not None:
            changed(((op.key.path, None),))
        return DELETED

    def _delete_range(self, op: DeleteRange, changed: Callable[[Sequence[KeyChange]], None] | None) -> OpResult:
        paths = self.paths_between(*key_order.range_bounds(op.start.path, op.end), keys_max=len(self.records))
        self.remove(paths)
        if changed is not None:
            changed([(path, None) for path in paths])
        return DELETED

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            del self.records[path]
            self.ephemeral.pop(path, None)
            self._order.remove(key_order.encode(path))

    def paths_between(self, start: bytes, end: bytes, *, keys_max: int) -> list[str]:
        return [key_order.decode(key) for key in self._order.between(start, end, keys_max=keys_max)]

    def ceiling(self, path: str, within: str) -> Record | None:
        seek, prefix = key_order.ceiling_bounds(path, within)
        found = self._order.ceiling(seek)
        return self.records[key_order.decode(found)] if found is not None and found.startswith(prefix) else None
