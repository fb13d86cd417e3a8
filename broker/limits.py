"""Bounds of a broker's requests, as values that constructors take: a test or a simulation gives others.

Fetches and groups have their own: broker/fetching/limits.py and broker/groups/limits.py.
"""

from dataclasses import dataclass
from typing import Final

from storage.catalog.topics import PATIENCE_S
from storage.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Bounds of what a broker does for one request, and of what all requests keep in memory."""

    # Dispatch.
    handler_timeout_s: float = 60.0
    """Long polls have their own time on top of it."""
    slow_request_s: float = 5.0
    """Longer than a broker takes that is well, whatever its stores are; shorter than the 30 s after which clients give up."""

    # Produce.
    produce_topics_patience_s: float = PATIENCE_S
    """A request waits so long for topics of which the cache has too few partitions."""
    topic_rules_kept_max: int = 50_000
    wide_produce_begin_s_max: float = 60.0
    """A batch that was not begun by then is refused: its client has given up."""

    # Recompression.
    recompression_wait_s_max: float = 30.0
    """Then the client has given up: the default request.timeout.ms of Java producers."""
    recompressed_bytes_max: int = 64 * MIB
    """For all requests not answered yet; above it no further one begins."""
    recompressed_of_request_bytes_max: int = 64 * MIB

    # Handlers.
    administration_timeout_ms_max: int = 50_000
    """For CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords. Below the dispatcher's deadline for any handler, so that the
    client learns what was done."""
    deletion_timeout_ms_min: int = 5_000
    """For DeleteRecords. Longer than a deletion takes, shorter than clients wait for an answer."""
    search_patience_s: float = 10.0
    """For all searches of a request for times: a slow prefix of the bucket must not hold up the other answers until clients give up."""
    configs_described_max: int = 10_000
    """Resources per request: 14 MB, or several times that with synonyms and documentation."""

    # Registration.
    register_pause_s: float = 1.0
    """Between two attempts to register again."""


DEFAULT_BROKER_LIMITS: Final = BrokerLimits()
