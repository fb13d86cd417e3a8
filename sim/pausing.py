"""The metadata store as a compactor reaches it: it stalls at a write, and is shown what segments/ was."""

from collections.abc import Callable, Sequence

from sim.metadata import SimMetadata
from sim.shards import OldView
from storage.metadata.port import DeleteRange, Key, WriteOp, WriteOutcome


class Pausing(SimMetadata):
    _left = 0

    def pause_at(self, number: int, pause: Callable[[], None]) -> None:
        """Call `pause` when the write of that number is about to be sent, those of claims not counted."""
        self._left, self._do_pause = number, pause

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if not _is_of_claim(ops[0]):
            self._left -= 1
            if not self._left:
                self._do_pause()
        return await super().write(ops)


class OldSegments(Pausing):
    """Where the leader of a shard was deposed, it may be that `only_segments` are old."""

    only_segments = False

    def _old_of(self, key: Key) -> OldView | None:
        return super()._old_of(key) if not self.only_segments or "/segments/" in key.path else None


def _is_of_claim(op: WriteOp) -> bool:
    return not isinstance(op, DeleteRange) and op.key.path.endswith("/compactor-claim")
