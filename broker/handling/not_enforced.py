"""Says in the log which configs were just given to topics although no broker enforces them yet."""

import contextlib
from collections.abc import Iterator, Mapping

import structlog

from broker.handling.administration import NAMED_MAX, By
from storage.catalog.topic_configs import not_enforced

_log = structlog.get_logger("administration")


class NotEnforced:
    """Made by `noting_not_enforced`."""

    def __init__(self) -> None:
        self._configs: set[str] = set()
        self._topics: list[str] = []
        self._count = 0

    def add(self, topic: str, configs: Mapping[str, str]) -> None:
        """`topic` has just been given `configs`."""
        kept = not_enforced(configs)
        if kept:
            self._configs.update(kept)
            self._count += 1
            if self._count <= NAMED_MAX:
                self._topics.append(topic)

    def say(self, by: By) -> None:
        if self._count:
            _log.warning("configs_not_enforced", configs=sorted(self._configs), count=self._count, topics=self._topics, **by._asdict())


@contextlib.contextmanager
def noting_not_enforced(by: By) -> Iterator[NotEnforced]:
    """One line for all topics of a request, if any of them needs one."""
    noted = NotEnforced()
    try:
        yield noted
    finally:
        noted.say(by)
