"""An offset as it was committed."""

from typing import NamedTuple


class Committed(NamedTuple):
    """With what the client wrote beside it. `expires_at_ms`: when it is to be forgotten, if the commit said so."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None
