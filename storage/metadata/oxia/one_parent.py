"""Ranges of keys that mean the same in every key sorting that Oxia has had: those under one parent. Pure."""


def parent_of(path: str) -> str:
    """Up to its last slash; empty when there is none."""
    return path.rpartition("/")[0]


def is_empty(start: str, end: str) -> bool:
    """Whether [start, end) has no keys whatever is stored: Oxia is not asked what it does with a range whose end comes first."""
    assert start.count("/") == end.count("/"), f"a range has one depth: {start=} {end=}"
    assert parent_of(start) == parent_of(end), f"a range stays under one parent: {start=} {end=}"
    # Code points sort as their UTF-8 does.
    return start >= end
