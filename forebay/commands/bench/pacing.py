"""A fixed rate: which records are due, and when. The first is due at once."""


def due_count(elapsed_s: float, *, per_s: float) -> int:
    """The number of records that are due by now."""
    return int(elapsed_s * per_s) + 1


def due_s(number: int, *, per_s: float) -> float:
    """The seconds after the start at which a record is due, counted from 0."""
    return number / per_s
