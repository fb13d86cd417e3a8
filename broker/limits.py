"""Bounds of a broker's requests, fetches and groups, as values that constructors take: a test or a simulation gives others."""

from dataclasses import dataclass
from typing import Final

from broker.protocol.fetch import PARTITIONS_PER_STEP
from storage.catalog.topics import TIMEOUT_S
from storage.limits import MIB, WRITE_REQUEST_OPS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Bounds of what a broker does for one request, and of what all requests keep in memory."""

    # Dispatch.
    handler_timeout_s: float = 60.0
    """Long polls have their own time on top of it."""
    slow_request_s: float = 5.0
    """Longer than a broker takes that is well, whatever its stores are; shorter than the 30 s after which clients give up."""

    # Produce.
    produce_topics_timeout_s: float = TIMEOUT_S
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
    search_timeout_s: float = 10.0
    """For all searches of a request for times: a slow prefix of the bucket must not hold up the other answers until clients give up."""
    configs_described_max: int = 10_000
    """Resources per request: 14 MB, or several times that with synonyms and documentation."""

    # Registration.
    register_pause_s: float = 1.0
    """Between two attempts to register again."""


DEFAULT_BROKER_LIMITS: Final = BrokerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of a broker's fetches: of one request, of what it reads and waits for, and of all requests under way."""

    # Fetch: the handler.
    fetch_wait_s_max: float = 300.0
    partitions_waiting_max: int = 500_000
    """Partitions in all requests under way, about 150 MiB of values. Above it no request waits, above its double none is served."""
    partitions_per_step: int = PARTITIONS_PER_STEP
    """Partitions of a request that are dealt with between two steps, as the codec reads and writes them."""
    topics_timeout_s: float = TIMEOUT_S
    """A request waits so long for its topics, if it has no others to answer."""
    refresh_timeout_s: float = 3.0
    """A request with other partitions to answer waits so long for a topic, a manifest or room."""

    # Delayed fetch: steps.
    looked_at_per_step: int = 500
    """Partitions of a fetch of many between two steps: a few milliseconds."""
    spared_per_step: int = 32
    """Partitions of a fetch whose bytes in memory are checked between two steps, whether they are taken or do not fit: mostly 0.1 ms each,
    but 3 ms where a block is full of tiny batches. Tasks read the others, as what is not in memory."""

    # Delayed fetch: reads of objects.
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

    # Delayed fetch: waiting.
    late_after_s: float = 1.0
    """A response that could go waits so long for a read of an object, as for a manifest whose shard is not known to be silent.
    Several times what a GET takes on a busy machine: below it healthy partitions are answered empty (0.25 s was too little)."""
    well_filled_share: float = 1 / 4
    """A share of what a response may hold."""
    moment_s: float = 0.01
    """A response that is well filled waits so long for reads of objects, from the last that it began on: several times what a read of
    memory or a disk takes. A read that an earlier fetch has left, and whose bytes are gone again, has the whole grace, so that no partition
    is always left; and so has each while one more that is left could end another.
    """
    empty_timeout_s: float = 3.0
    """A response with nothing in it waits this long for late ones, or as long as its client asked if that is longer."""

    # Waiters.
    poll_s: float = 0.1
    """Between two polls of partitions of which no hints arrive."""


DEFAULT_FETCH_LIMITS: Final = FetchLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Bounds of a coordinator: of the groups it holds, of what they store, and of how long it waits."""

    # Coordinator: groups in memory.
    lost_check_s: float = 0.1
    """Between two looks whether the registration that the claims go with is lost: nobody is asked."""
    groups_loaded_max: int = 10_000
    """Above it groups without members make room, as where their memory is used up, and then those whose members are silent."""
    members_silent_s: float = 60.0
    """Without a sign of life of any member: longer than consumers are silent as a rule, much shorter than a session may be."""
    look_for_silent_s: float = 1.0

    # Coordinator: waiting.
    request_deadline_s: float = 30.0
    """For a request that waits for a write at most."""
    question_timeout_s: float = 3.0
    """A question about many groups waits so long for one of them, or for who coordinates what, before it is answered without."""
    join_wait_s_max: float = 3_600.0
    """For a request that waits for other members: longer than any rebalance timeout that makes sense."""
    late_loads_max: int = 256
    """The loads too late for their answer that may go on: otherwise a slow group would never be loaded by a request for many."""

    # LoadedGroup.
    jobs_max: int = 10_000
    commits_together_max: int = 64

    # StoredGroup.
    offsets_max: int = 100_000
    """Offsets of one group: they are in memory while it is loaded, and each takeover writes them again."""
    topics_named_max: int = 256
    """Topics with offsets that a group's record names; records beside it name more."""
    topics_page_max: int = 1_000
    write_request_ops_max: int = WRITE_REQUEST_OPS_MAX

    # Sweep, and all who read groups as they are stored.
    silent_after_s: float = 3.0
    """A scan of which nothing came for so long is given up: it may take longer than that, but has to go on."""
    sweep_deadline_s: float = 30.0


DEFAULT_GROUP_LIMITS: Final = GroupLimits()
