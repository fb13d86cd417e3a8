"""Bounds of the catalog that tests change: how long it waits and believes what it has read, and what it remembers."""

from dataclasses import dataclass
from typing import Final

from storage.catalog.records import ATTEMPTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLimits:
    """Bounds of one broker's view of topics and of the cluster's format level."""

    # Lookups of topics

    topics_cache_age_s: float = 30.0
    topics_timeout_s: float = 5.0
    """How long a lookup waits for topics of which nothing is known, and how long where an older answer is at hand."""
    topics_stale_timeout_s: float = 3.0
    topics_silent_timeout_s: float = 1.0
    """How long any lookup waits while the catalog is known to be silent."""

    # Probes of a catalog that is silent

    probe_timeout_s: float = 5.0
    probe_pause_s: float = 1.0

    # Confirmed topics

    confirmation_late_s: float = 0.1
    """A shard that has not answered for so long is not waited for alone."""
    confirmation_timeout_s: float = 10.0
    confirmation_partitions_max: int = 64
    """Partitions of a topic that are looked at, to find one on the wanted shard."""
    confirmation_places_kept_max: int = 50_000

    # Changes of topics

    change_attempts_max: int = ATTEMPTS_MAX
    """Attempts at one write, or reads of one record, of a change."""
    creation_looks_max: int = 10
    """How often a creation that another broker has begun is looked at before it is given up (pauses of up to half a second between)."""

    # The format level

    level_read_every_s: float = 10.0


DEFAULT_LIMITS: Final = CatalogLimits()
