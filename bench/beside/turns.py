"""Whose turn it is. Pure."""

from collections.abc import Sequence


def turns(others: Sequence[str], round_index: int) -> list[str]:
    """The order of those beside Kafka, which comes first in every round.

    A row of a balanced Latin square (Williams): within as many rounds as there are others, each of an even number follows each other one
    at most once. Of an odd number every second cycle goes backwards.
    """
    count = len(others)
    if not count:
        return []
    row = [others[(round_index + step) % count] for step in _zigzag(count)]
    return row[::-1] if count % 2 and round_index // count % 2 else row


def _zigzag(count: int) -> list[int]:
    """0, 1, -1, 2, -2, …: so the distances between neighbours all differ."""
    return [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]
