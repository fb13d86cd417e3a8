"""Which brokers come and go, as one broker sees it: a line of the log each."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog

LEFT_MEANING: Final = "it was stopped, it died, or it lost the metadata store; the others serve its partitions at once"

_log = structlog.get_logger("membership")


class Registered(Protocol):
    """A broker's record, as far as this concerns."""

    @property
    def broker_id(self) -> int: ...
    @property
    def listeners(self) -> Iterable[object]: ...
    @property
    def rack(self) -> str | None: ...
    @property
    def version(self) -> str: ...
    @property
    def session_id(self) -> int: ...


class Change(NamedTuple):
    broker: Registered
    event: str


@dataclass(frozen=True, slots=True)
class Members:
    """The brokers registered at the last read, by id."""

    by_id: dict[int, Registered]

    def changes(self, now: "Members") -> list[Change]:
        """What happened between the two. A broker that lost its session and has another is still the same broker."""
        gone = [Change(broker, "broker_left") for broker_id, broker in self.by_id.items() if broker_id not in now.by_id]
        return gone + [
            Change(broker, "broker_registered_again" if broker_id in self.by_id else "broker_joined")
            for broker_id, broker in now.by_id.items()
            if broker_id not in self.by_id or self.by_id[broker_id].session_id != broker.session_id
        ]


class MembershipLog:
    """Given each list of the registered brokers, newest last."""

    def __init__(self) -> None:
        self._members: Members | None = None

    def note(self, live: Iterable[Registered], *, own_id: int) -> None:
        """The first list is where it begins: nothing is said of it. A broker does not speak of itself."""
        members = Members({broker.broker_id: broker for broker in live if broker.broker_id != own_id})
        former, self._members = self._members, members
        for broker, event in former.changes(members) if former is not None else ():
            facts = {"broker_id": broker.broker_id, "version": broker.version, "rack": broker.rack}
            facts["listeners"] = ", ".join(map(str, broker.listeners))
            if event == "broker_left":
                facts["meaning"] = LEFT_MEANING
            _log.info(event, **facts)
