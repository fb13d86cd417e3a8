"""What one broker remembers of a partition's producers beside the control record. Safety rests on none of it: all of it can be lost."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from storage.log.lost import LostBatches
from storage.log.strangers import Strangers

PAGE_GARBAGE_MAX: Final = 64


class ProducerMemory:
    """`lost` holds, by producer, the lowest sequence that was answered with an error though the producer may have sent more behind it:
    written by `LostBatches`, which counts those of all partitions.
    `strangers` are unknown producers that wait for what comes before their batches.
    `page_garbage` names pages of producer states to be deleted with the next commit.
    """

    __slots__ = ("_lost_of_all", "_sweep_at_s", "lost", "page_garbage", "strangers")

    def __init__(self, lost_of_all: LostBatches, strangers: Strangers) -> None:
        self._lost_of_all = lost_of_all
        self._sweep_at_s = float("-inf")
        self.lost: dict[int, int] = {}
        self.strangers = strangers
        self.page_garbage: list[str] = []

    def lose(self, producer_id: int, first_seq: int, now_s: float) -> None:
        """A batch was answered with an error; what its producer sent behind it may still be on its way here."""
        self._lost_of_all.note(self, producer_id, first_seq, now_s)

    def lost_since(self, since_s: float) -> Mapping[int, int]:
        """The lowest sequence by producer of those lost since then. What was sent behind older ones is not on its way any more."""
        self._lost_of_all.forget_before(self, since_s)
        return self.lost

    def forget_lost(self) -> None:
        self._lost_of_all.forget(self)

    def discard_pages(self, names: Iterable[str]) -> None:
        """No control record can name them any more. What is too much is left to a sweep."""
        self.page_garbage += islice(names, max(0, PAGE_GARBAGE_MAX - len(self.page_garbage)))

    def forget_page_garbage(self) -> None:
        """It is deleted with what is sent now. If that fails, it is left to a sweep."""
        self.page_garbage = []

    def is_sweep_due(self, now_s: float, *, every_s: float) -> bool:
        """True once in `every_s`: then the caller removes the pages that nothing names."""
        if now_s < self._sweep_at_s:
            return False
        self._sweep_at_s = now_s + every_s
        return True
