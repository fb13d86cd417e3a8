"""Values of records: random bytes, so that no compression makes a load smaller than it is, and made before any clock starts.

The same values come again and again. There are more of them than a batch has room for, so that no batch has one twice.
"""

from collections.abc import Callable
from typing import Any, Final

from forebay.commands.bench.settings import BATCH_BYTES, BATCH_RECORDS

VALUES_MIN: Final = 1_000
VALUES_MAX: Final = 2 * BATCH_RECORDS
VALUES_BYTES_MAX: Final = 64 * 1024 * 1024
_BATCHES: Final = 2

PayloadMessages = list[dict[str, Any]]


def value_count(record_bytes: int) -> int:
    """The number of values of this size: at least two batches of them, unless they are huge."""
    wanted = max(VALUES_MIN, min(VALUES_MAX, -(-_BATCHES * BATCH_BYTES // record_bytes)))
    return max(1, min(wanted, VALUES_BYTES_MAX // record_bytes))


def random_values(record_bytes: int, *, entropy: Callable[[int], bytes]) -> list[bytes]:
    return [entropy(record_bytes) for _ in range(value_count(record_bytes))]


class Payloads:
    """The values in turn, as the library takes many records at a time. Each sequence of records to a partition has one of these."""

    def __init__(self, messages: "PayloadMessages") -> None:
        self._messages = messages
        self._at = 0

    def next(self, count_max: int) -> "PayloadMessages":
        """One record at least; fewer than asked for where the values begin again."""
        taken = self._messages[self._at : self._at + count_max]
        self._at += len(taken)
        if self._at == len(self._messages):
            self._at = 0
        return taken
