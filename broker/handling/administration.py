"""What administrative requests changed, and who asked for it: one line of the log for each change.

The audit log, if there is one, has a line for each change as well, and for each that was refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

Audit = Callable[[Mapping[str, object]], None]
"""Takes one line of the audit log, and neither waits nor raises."""

LISTED_MAX: Final = 100
"""Partitions in one line."""
NAMED_MAX: Final = 5
"""Names in one line about changes whose outcome is unknown."""

_log = structlog.get_logger("administration")


class Requester(NamedTuple):
    """The asker. A client id is what the client says: only the address proves anything."""

    client_host: str
    client_id: str | None
    listener: str


class Administration:
    """Called right after a change is certain, so that a client that leaves meanwhile leaves no change unsaid."""

    def __init__(self, audit: Audit | None = None) -> None:
        self._audit = audit

    def changed(self, event: str, by: Requester, **facts: object) -> None:
        """`event` names what happened in the past tense: topic_created."""
        _log.info(event, **facts, **by._asdict())
        if self._audit is not None:
            self._audit({"event": event, "outcome": "done", **facts, **by._asdict()})

    def failed(self, event: str, by: Requester, *, error: ErrorCode, message: str | None = None, **facts: object) -> None:
        """The change that would have been `event` was refused, or nobody knows what became of it (REQUEST_TIMED_OUT)."""
        with self.failures(event, by) as failures:
            failures.add("", error=error, message=message, **facts)

    @contextlib.contextmanager
    def failures(self, event: str, by: Requester) -> "Iterator[Failures]":
        """The same of all that one request asked for: those of which nobody knows what became of them share a line of the log."""
        failures = Failures(event, by, self._audit)
        try:
            yield failures
        finally:
            failures.say()


class Failures:
    """Made by `Administration.failures`."""

    def __init__(self, event: str, by: Requester, audit: Audit | None) -> None:
        self._event = event
        self._by = by._asdict()
        self._audit = audit
        self._unknown = 0
        self._named: list[str] = []
        self._first: dict[str, object] = {}

    def add(self, name: str, /, *, error: ErrorCode, message: str | None = None, **facts: object) -> None:
        """`name`: the thing to change, where the request may name several."""
        is_unknown = error is ErrorCode.request_timed_out
        if is_unknown:
            self._first = self._first or {"cause": message, **facts}
            self._unknown += 1
            if len(self._named) < NAMED_MAX:
                self._named.append(name)
        if self._audit is not None:
            outcome = "unknown" if is_unknown else "refused"
            line = {"event": self._event, "outcome": outcome, "error": error.name.upper(), "message": message}
            self._audit({**line, **facts, **self._by})

    def say(self) -> None:
        """What nobody knows: facts of one alone, and of several how many they are and the first of their names."""
        if self._unknown > 1:
            facts = {"cause": self._first["cause"], "count": self._unknown, "named": self._named}
            _log.warning("outcome_unknown", change=self._event, **facts, **self._by)
        elif self._unknown:
            _log.warning("outcome_unknown", change=self._event, **self._first, **self._by)


def brief_offsets(partitions: Mapping[int, int]) -> dict[str, int]:
    """Partitions and their offsets as one line has room for them: the first LISTED_MAX."""
    return {str(partition): partitions[partition] for partition in sorted(partitions)[:LISTED_MAX]}
