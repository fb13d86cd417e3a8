"""What a seed is about. Corners that take several rare things at once are reached by seeds in which these go together.

Some seeds lower the bounds of the log or of the compactor, so that a short run reaches what a large log reaches in days.
"""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from compactor.limits import DEFAULT_LIMITS as COMPACTOR_LIMITS
from compactor.limits import CompactorLimits
from sim.faults import PROFILES, Fault, Profile, Temper
from sim.nemesis import CHURN, CRASHES, KINDS, OUTAGES, UNTIMED
from sim.producers import START_S_MAX, Style
from storage.log.decide import PRODUCER_EXPIRATION_MS
from storage.log.limits import DEFAULT_LIMITS, LogLimits

SMALL_FETCHES: Final = FetchLimits(looked_at_per_step=1, reads_at_once=1, reads_under_way_max=2, partitions_per_step=1)
"""A fetch of two partitions is wide."""
KIND_KEPT_RATE: Final = 0.7
SLUGGISH_RATE: Final = 0.3
SPILL_SLOW_RATE: Final = 0.4
CHURN_HASTE: Final = 5
FAULTS_S: Final = (4.0, 16.0)
EXPIRATION_MS: Final = 15_000
DELIVERY_TIMEOUT_S: Final = 14.0
"""With what a commit may take after that far less than FORGOTTEN_AFTER times EXPIRATION_MS: what is sent again finds what was appended."""


def small_log(limits: LogLimits) -> LogLimits:
    """The ring, the hot producers, the writers and the memories of a reader overflow within seconds."""
    return replace(
        limits,
        pending_entries_max=3,
        quiet_bytes_min=300,
        early_commits_at_once_max=1,
        early_object_bytes=2_000,
        early_age_s=1.0,
        early_slices_max=8,
        early_waiting_bytes_max=6_000,
        early_delete_after_s=0.05,
        early_pages_per_delete=2,
        early_bytes_per_delete=400,
        early_kept_bytes_max=600,
        early_read_bytes_max=500,
        early_stored_kept_max=2,
        queued_commits_max=2,
        slow_uploads_max=1,
        join_below_bytes=100,
        producers_hot_max=2,
        producer_page_bytes_max=600,
        producer_pages_written_max=2,
        producers_per_commit_max=6,
        producer_pages_sweep_every_s=1.0,
        read_places_kept_max=2,
        unattended_max=1,
        fetch_places_kept_max=8,
        footers_bytes_max=3_000,
        whole_segment_bytes_max=500,
        fronts_kept_max=1,
        ahead_bytes=100,
        ahead_bytes_max=200,
        said_objects_max=4,
        said_entries_max=6,
        early_entries_per_read=4,
        ahead_objects_max=2,
        ahead_get_bytes_max=300,
        places_said_max=1,
        chunks_kept_max=2,
        chunks_bytes_max=6_000,
        segments_kept_max=1,
        segment_partitions_kept_max=1,
        chunks_per_turn=1,
        segments_per_turn=1,
        writers_kept_max=1,
        dead_writers_look_every_s=0.2,
        dead_writers_kept_max=1,
    )


def long_early_objects_log(limits: LogLimits) -> LogLimits:
    """An early object is open for long, and takes in slices of all partitions."""
    return replace(limits, early_object_bytes=16_000, early_waiting_bytes_max=48_000, early_slices_max=200, early_age_s=6.0)


def tight_log(limits: LogLimits) -> LogLimits:
    """For eleven producers at most, and the largest slice that a commit carries: a manifest with a long ring fits only after that was
    drained, and then always.
    """
    return replace(limits, pending_entries_max=9, manifest_bytes_max=1_700)


def forgetful_log(limits: LogLimits) -> LogLimits:
    """A broker forgets logs and pages of producers that it has touched, and who waits."""
    return replace(
        limits,
        producer_pages_cached_max=2,
        partitions_kept_max=3,
        partitions_bytes_max=8_000,
        lost_kept_max=1,
        lost_of_all_kept_max=2,
        unknown_producers_max=2,
        unknown_producers_of_all_max=3,
    )


def impatient_log(limits: LogLimits) -> LogLimits:
    """A request without an answer is soon one whose outcome is unknown, and a commit is tried again for long after that."""
    return replace(limits, commit_write_timeout_s=0.5, manifest_read_timeout_s=0.5, trim_write_timeout_s=0.5, index_read_timeout_s=0.5)


def short_deadlines_log(limits: LogLimits) -> LogLimits:
    """Short beside the outages and pauses of a run, so that commits are given up, abandoned and fenced. An unknown producer waits for
    longer than a commit and the longest pause of a broker together: what comes before it is then not on its way any more.
    """
    return replace(
        impatient_log(limits),
        commit_timeout_s=1.5,
        unknown_producers_wait_s=10.0,
        upload_try_timeout_s=0.5,
        upload_timeout_s=1.0,
        producer_pages_timeout_s=0.5,
    )


def shortest_wait_log(limits: LogLimits) -> LogLimits:
    """For runs in which no request is late and no broker pauses: longer than a commit is all that an unknown producer has to wait."""
    return replace(short_deadlines_log(limits), unknown_producers_wait_s=2.0)


def small_compactor(limits: CompactorLimits) -> CompactorLimits:
    """Its memories overflow within seconds, and its requests are split."""
    return replace(
        limits,
        keys_per_delete=1,
        segment_entries_max=5,
        slice_read_bytes_max=300,
        gap_bytes_max=100,
        get_bytes_max=700,
        spool_chunk_bytes=400,
        begun_together_max=2,
        finished_together_max=1,
        merge_keys_per_put=1,
        merge_segments_read_max=6,
        chunks_per_turn=1,
        purge_records_per_run=2,
        purge_objects_per_delete=1,
        purged_topics_kept_max=1,
        retention_looks_kept_max=1,
        retention_sizes_kept_max=8,
        dead_writers_max=0,
        noted_brokers_max=3,
        gone_brokers_kept_max=3,
        broker_alive_for_s=2.0,
    )


def short_deadlines_compactor(limits: CompactorLimits) -> CompactorLimits:
    """Short beside the outages and pauses of a run."""
    return replace(limits, call_timeout_s=0.5)


@dataclass(frozen=True, slots=True)
class Crowd:
    """The producers: how many, how many batches each at most, how likely with sequences, how fast, and whether all to one partition.

    Half of them begin at once, the others within `start_s_max`. Those with sequences give up what has no ack after `delivery_timeout_s`.
    """

    count: int
    batches_max: int
    idempotent_rate: float = 0.75
    pauses_s: tuple[float, ...] = (0.02, 0.3, 0.8)
    is_narrow: bool = False
    start_s_max: float = START_S_MAX
    delivery_timeout_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Theme:
    """`has_leaders`: a producer knows one broker, and asks no other. `is_early`: all that may go early does. `nemesis_s`: mean time between
    two strikes of `kinds`, and `faults_s` how long they go on, at least and at most. `expiration_ms`: how long brokers remember a producer
    that appends nothing. `skews_ms`: by how much their wall clocks are wrong.
    """

    name: str
    fetch_limits: FetchLimits
    crowd: Crowd
    kinds: tuple[str, ...]
    nemesis_s: float
    metadata: Temper
    objects: Temper
    log_limits: LogLimits = DEFAULT_LIMITS
    is_wide: bool = False
    is_early: bool = False
    has_fleeting: bool = False
    has_leaders: bool = False
    styles: tuple[Style, ...] = (Style.JAVA, Style.LIBRDKAFKA)
    faults_s: tuple[float, float] = FAULTS_S
    expiration_ms: int = PRODUCER_EXPIRATION_MS
    skews_ms: tuple[int, ...] = (0, 0, -3_600_000, 3_600_000, 40)
    compactor: CompactorLimits = COMPACTOR_LIMITS

    def may_have_expired(self, sent_s: float, now_s: float) -> bool:
        """Whether some broker may have forgotten a producer that has sent nothing since `sent_s`. The broker that is asked may be ahead of
        the one that stamped its batch.

            stamped at 40.664, by a clock that is right … asked at 70.661 a broker that is 40 ms ahead: it says 70.701, and 30 s have gone
        """
        lead_ms = max(self.skews_ms) - min(self.skews_ms)
        return sent_s + (self.expiration_ms - lead_ms) / 1_000 <= now_s


NAMES: Final = ("usual", "sharing", "passing", "spilling", "churning", "stubborn", "trimming")
_SHARES: Final = (0.50, 0.56, 0.62, 0.80, 0.92, 0.96)
"""Below which of these the number drawn is, says which theme it is; the last one otherwise."""


def theme_of(chance: random.Random, faults: str, *, name: str | None = None) -> Theme:
    """As drawn, or one of NAMES. Without faults all are usual."""
    profile = PROFILES[faults]
    drawn = NAMES[bisect_right(_SHARES, chance.random())]
    usual = _usual(chance, profile)
    match (name or drawn) if profile.rate_max else "usual":
        case "sharing":
            return _sharing(chance, usual)
        case "passing":
            return _passing(usual)
        case "spilling":
            return _spilling(usual)
        case "churning":
            return _churning(chance, usual)
        case "stubborn":
            return _stubborn(usual)
        case "trimming":
            return replace(usual, name="trimming", kinds=("trim",))
    return usual


def _usual(chance: random.Random, profile: Profile) -> Theme:
    """Whatever comes: some logs have a few busy producers, some many that nobody knows yet, some many that are busy with one partition."""
    is_forgetful = chance.random() < 0.3
    is_small = chance.random() < 0.6
    has_short_deadlines = bool(profile.rate_max) and chance.random() < 0.4
    compactor = small_compactor(COMPACTOR_LIMITS) if is_small else COMPACTOR_LIMITS
    compactor = short_deadlines_compactor(compactor) if has_short_deadlines else compactor
    log = small_log(DEFAULT_LIMITS) if is_small else DEFAULT_LIMITS
    log = forgetful_log(log) if is_forgetful else log
    log = short_deadlines_log(log) if has_short_deadlines else log
    crowd = chance.choice(
        (
            Crowd(chance.randint(2, 4), 16),
            Crowd(chance.randint(2, 4), 16),
            Crowd(7, 5),
            Crowd(5, 16, 0.1, (0.02, 0.3), is_narrow=True),
            Crowd(chance.randint(30, 50), 2, 0.9, (0.02, 0.3), is_narrow=True),
        )
    )
    kinds = tuple(kind for kind in KINDS if chance.random() < KIND_KEPT_RATE) or ("crash",)
    sluggish = Temper(profile, is_sluggish=True) if chance.random() < SLUGGISH_RATE else Temper(profile)
    return Theme(
        "usual",
        SMALL_FETCHES if is_small else DEFAULT_FETCH_LIMITS,
        crowd,
        kinds,
        profile.nemesis_s,
        metadata=sluggish,
        objects=Temper(profile),
        log_limits=log,
        is_wide=is_forgetful,
        has_fleeting=bool(profile.nemesis_s) and chance.random() < 0.3,
        compactor=compactor,
    )


def _spilling(usual: Theme) -> Theme:
    """More busy producers than a manifest keeps, at brokers whose store takes its time."""
    return replace(
        usual,
        name="spilling",
        fetch_limits=SMALL_FETCHES,
        log_limits=tight_log(small_log(usual.log_limits)),
        crowd=Crowd(9, 24, 1.0, (0.02,), is_narrow=True),
        metadata=replace(usual.metadata, is_sluggish=True, rates={Fault.SLOW: SPILL_SLOW_RATE}),
        has_fleeting=False,
        compactor=small_compactor(usual.compactor),
    )


def _sharing(chance: random.Random, usual: Theme) -> Theme:
    """Many partitions have places in the same early objects, and brokers die before these are stored."""
    return replace(
        usual,
        name="sharing",
        log_limits=long_early_objects_log(usual.log_limits),
        crowd=Crowd(chance.randint(8, 12), 10, 0.5, (0.1, 0.3, 0.8)),
        kinds=CRASHES,
        is_wide=True,
        is_early=True,
        has_fleeting=False,
    )


def _passing(usual: Theme) -> Theme:
    """Many producers append a little and are forgotten; some come back after that. No clock jumps, no broker stalls."""
    return replace(
        usual,
        name="passing",
        fetch_limits=SMALL_FETCHES,
        log_limits=short_deadlines_log(small_log(DEFAULT_LIMITS)),
        crowd=Crowd(24, 4, 1.0, (0.02, 0.3, 8.0), is_narrow=True, start_s_max=60.0, delivery_timeout_s=DELIVERY_TIMEOUT_S),
        kinds=UNTIMED,
        nemesis_s=usual.nemesis_s * 2,
        is_wide=False,
        has_fleeting=False,
        faults_s=(40.0, 70.0),
        expiration_ms=EXPIRATION_MS,
        skews_ms=(0, 0, 40),
        compactor=short_deadlines_compactor(small_compactor(COMPACTOR_LIMITS)),
    )


def _churning(chance: random.Random, usual: Theme) -> Theme:
    """Brokers come and go all the time, so that their entries in a manifest come and go too; only the log can tell a repetition."""
    return replace(
        usual,
        name="churning",
        fetch_limits=SMALL_FETCHES,
        log_limits=impatient_log(small_log(DEFAULT_LIMITS)),
        crowd=Crowd(chance.randint(4, 6), 40, 0.1, (0.1, 0.3)),
        kinds=CHURN,
        nemesis_s=usual.nemesis_s / CHURN_HASTE,
        metadata=replace(usual.metadata, is_sluggish=True),
        is_wide=False,
        has_fleeting=False,
        compactor=small_compactor(COMPACTOR_LIMITS),
    )


def _stubborn(usual: Theme) -> Theme:
    """Uploads fail for seconds, clients send each batch again by itself to the one broker they know, and unknown producers wait shortly:
    nothing else is late, so nothing can be on its way for longer.
    """
    return replace(
        usual,
        name="stubborn",
        fetch_limits=DEFAULT_FETCH_LIMITS,
        log_limits=shortest_wait_log(DEFAULT_LIMITS),
        crowd=Crowd(8, 6, 1.0, (0.02,), is_narrow=True),
        kinds=OUTAGES,
        metadata=Temper(PROFILES["none"]),
        objects=Temper(usual.objects.profile, rates={Fault.REFUSED: 0.45, Fault.REQUEST_LOST: 0.15}),
        is_wide=False,
        has_fleeting=False,
        has_leaders=True,
        styles=(Style.EAGER,),
        compactor=short_deadlines_compactor(COMPACTOR_LIMITS),
    )
