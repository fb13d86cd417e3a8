"""What clients know of the cluster: topics by their names, and what an answer's error code means to a client library."""

from collections.abc import Callable
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from sim.broker import SimBroker

INDEFINITE: Final = frozenset({ErrorCode.request_timed_out, ErrorCode.not_leader_or_follower})
"""Answers to Produce after which a client does not know whether its batch was appended. After any other error it was not."""
ABSENT: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id})

CurrentBrokers = Callable[[], list[SimBroker]]
"""The brokers there are now, up or not."""


class Place(NamedTuple):
    """A partition as clients name it. `may_be_absent`: its topic comes and goes, or the partition came later than the topic.

    `is_fleeting`: the former. A producer may find that nobody knows what it appended before.
    """

    topic: str
    partition: int
    may_be_absent: bool = False
    is_fleeting: bool = False

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    def is_deserved(self, code: ErrorCode) -> bool:
        """Whether a client that does nothing wrong may be given this error: those it tries again after, absence only where there is any."""
        return code.retriable and (self.may_be_absent or code not in ABSENT)
