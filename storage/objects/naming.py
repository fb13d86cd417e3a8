"""Names of objects: what every store accepts (port.py), checked before a store acts on a name."""

import re
from typing import Final

KEY_LENGTH_MAX: Final = 512

TEMPORARY_FOLDER: Final = ".tmp"
"""First segment that no key has: room for a store's own files beside the objects."""

PROBES: Final = ".probe/"
"""What is put to see whether puts succeed begins so, and no other object."""

MARKERS: Final = "forebay-"
"""Objects that say of which cluster a store is, and of which state of its metadata, begin so, and no other object."""

MARKER: Final = f"{MARKERS}cluster.json"
"""The object that says whose the store is (storage/catalog/identity.py)."""

# A segment is a file name on a disk: at most 255 bytes, and not "." or "..".
_SEGMENT: Final = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]{1,255}"
_KEY: Final = re.compile(rf"(?!\.tmp(?:/|\Z)){_SEGMENT}(?:/{_SEGMENT})*\Z")
_SEGMENT_ALONE: Final = re.compile(rf"{_SEGMENT}\Z")


def is_key(text: str) -> bool:
    return len(text) <= KEY_LENGTH_MAX and _KEY.match(text) is not None


def is_segment(text: str) -> bool:
    return _SEGMENT_ALONE.match(text) is not None


def check_key(key: str) -> None:
    """Raise ValueError, a programmer error, if `key` may not name an object: it could lead out of the store."""
    if not is_key(key):
        raise ValueError(f"not the name of an object: key={key!r}")
