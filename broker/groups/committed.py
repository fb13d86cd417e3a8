"""An offset as it was committed."""

from typing import Final, NamedTuple


class Committed(NamedTuple):
    """A committed offset with the client's metadata. `expires_at_ms`: when to forget it, if the commit said so."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None


NOTHING: Final = Committed(-1, -1, "", -1)
"""What is answered where nothing is committed. No commit equals it: each has a time."""
