"""Bounds of fetches, as values that constructors take: a test or a simulation gives others."""

from dataclasses import dataclass
from typing import Final

from broker.protocol.fetch import PARTITIONS_PER_STEP
from storage.catalog.topics import PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of a broker's fetches: of one request, of what it reads and waits for, and of all requests under way."""

    # Fetch: the handler.
    fetch_wait_s_max: float = 300.0
    partitions_waiting_max: int = 500_000
    """Partitions in all requests under way, about 150 MiB of values. Above it no request waits, above its double none is served."""
    partitions_per_step: int = PARTITIONS_PER_STEP
    """Partitions of a request that are dealt with between two steps, as the codec reads and writes them."""
    topics_patience_s: float = PATIENCE_S
    """A request waits so long for its topics, if it has no others to answer."""
    refresh_patience_s: float = 3.0
    """A request with other partitions to answer waits so long for a topic, a control record or room."""

    # Gathering: steps.
    looked_at_per_step: int = 500
    """Partitions of a fetch of many between two steps: a few milliseconds."""
    spared_per_step: int = 32
    """Partitions of a fetch whose bytes in memory are checked between two steps, whether they are taken or do not fit: mostly 0.1 ms each,
    but 3 ms where a block is full of tiny batches. Tasks read the others, as what is not in memory."""

    # Gathering: reads of objects.
    reads_at_once: int = 8
    """Per fetch, not counting late reads."""
    reads_under_way_max: int = 16
    """Per fetch, with late reads."""
    stored_runs_max: int = 64
    """Runs from the object store in one response: a log of tiny objects is answered in several."""
    runs_per_read: int = 16
    worth_a_read_share: float = 1 / 32
    """When less than this share of a response is left, and it has something, nothing more is read from the store for it. A GET for each of
    the other partitions, only to find that its first batch does not fit, would hold it up.
    """

    # Gathering: waiting.
    grace_s: float = 1.0
    """A response that could go waits so long for a read of an object, as for a control record whose shard is not known to be silent.
    Several times what a GET takes on a busy machine: below it healthy partitions are answered empty (0.25 s was too little)."""
    well_filled_share: float = 1 / 4
    """A share of what a response may hold."""
    moment_s: float = 0.01
    """A response that is well filled waits so long for reads of objects, from the last that it began on: several times what a read of
    memory or a disk takes. A read that an earlier fetch has left, and whose bytes are gone again, has the whole grace, so that no partition
    is always left; and so has each while one more that is left could end another.
    """
    empty_patience_s: float = 3.0
    """A response with nothing in it waits so long for late ones, beyond the time that the client wants to wait."""

    # Waiters.
    poll_s: float = 0.1
    """Between two polls of partitions of which no hints arrive."""


DEFAULT_FETCH_LIMITS: Final = FetchLimits()
