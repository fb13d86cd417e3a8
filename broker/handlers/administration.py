"""What administrative requests changed, and who asked for it: one line of the log for each change.

The audit log, if there is one, has a line for each change as well, and for each that was refused.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

Audit = Callable[[Mapping[str, object]], None]
"""Takes one line of the audit log, and neither waits nor raises."""

LISTED_MAX: Final = 100
"""Of partitions in one line."""

_log = structlog.get_logger("administration")


class By(NamedTuple):
    """Who asked. A client id is what the client says: only the address proves anything."""

    client_host: str
    client_id: str | None
    listener: str


class Administration:
    """Called right after a change is certain, so that a client that leaves meanwhile leaves no change unsaid."""

    def __init__(self, audit: Audit | None = None) -> None:
        self._audit = audit

    def changed(self, event: str, by: By, **facts: object) -> None:
        """`event` names what happened in the past tense: topic_created."""
        _log.info(event, **facts, **by._asdict())
        if self._audit is not None:
            self._audit({"event": event, "outcome": "done", **facts, **by._asdict()})

    def failed(self, event: str, by: By, *, error: ErrorCode, message: str | None = None, **facts: object) -> None:
        """The change that would have been `event` was refused, or nobody knows what became of it (REQUEST_TIMED_OUT)."""
        is_unknown = error is ErrorCode.request_timed_out
        if is_unknown:
            _log.warning("outcome_unknown", change=event, cause=message, **facts, **by._asdict())
        if self._audit is not None:
            outcome = "unknown" if is_unknown else "refused"
            self._audit({"event": event, "outcome": outcome, "error": error.name.upper(), "message": message, **facts, **by._asdict()})


def listed(partitions: Mapping[int, int]) -> dict[str, int]:
    """Partitions and their offsets as one line has room for them: the first LISTED_MAX."""
    return {str(partition): partitions[partition] for partition in sorted(partitions)[:LISTED_MAX]}
