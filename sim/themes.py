"""What a seed is about. Corners that take several rare things at once are reached by seeds in which these go together."""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

from broker.fetching.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from compactor.limits import DEFAULT_LIMITS as COMPACTOR_LIMITS
from compactor.limits import CompactorLimits
from sim.faults import PROFILES, Fault, Profile, Temper
from sim.idempotent import Style
from sim.limits import (
    SMALL_FETCHES,
    forgetful_log,
    impatient_log,
    short_deadlines_compactor,
    short_deadlines_log,
    shortest_wait_log,
    small_compactor,
    small_log,
    tight_log,
)
from sim.producers import START_S_MAX
from sim.weather import CHURN, KINDS, OUTAGES, UNTIMED
from storage.log.decide import PRODUCER_EXPIRATION_MS
from storage.log.limits import DEFAULT_LIMITS, LogLimits

KIND_KEPT_RATE: Final = 0.7
SLUGGISH_RATE: Final = 0.3
SPILL_SLOW_RATE: Final = 0.4
CHURN_HASTE: Final = 5
FAULTS_S: Final = (4.0, 16.0)
EXPIRATION_MS: Final = 15_000
DELIVERY_TIMEOUT_S: Final = 14.0
"""With what a commit may take after that far less than FORGOTTEN_AFTER times EXPIRATION_MS: what is sent again finds what was appended."""


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
    """`has_leaders`: a producer knows one broker, and asks no other. `weather_s`: mean time between two strikes of `kinds`, and `faults_s`
    how long they go on, at least and at most. `expiration_ms`: how long brokers remember a producer that appends nothing. `skews_ms`: by
    how much their wall clocks are wrong.
    """

    name: str
    fetch_limits: FetchLimits
    crowd: Crowd
    kinds: tuple[str, ...]
    weather_s: float
    metadata: Temper
    objects: Temper
    log_limits: LogLimits = DEFAULT_LIMITS
    is_wide: bool = False
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


NAMES: Final = ("usual", "passing", "spilling", "churning", "stubborn", "trimming")
_SHARES: Final = (0.56, 0.62, 0.80, 0.92, 0.96)
"""Below which of these the number drawn is, says which theme it is; the last one otherwise."""


def theme_of(chance: random.Random, faults: str, *, name: str | None = None) -> Theme:
    """As drawn, or one of NAMES. Without faults all are usual."""
    profile = PROFILES[faults]
    drawn = NAMES[bisect_right(_SHARES, chance.random())]
    usual = _usual(chance, profile)
    match (name or drawn) if profile.rate_max else "usual":
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
        profile.weather_s,
        metadata=sluggish,
        objects=Temper(profile),
        log_limits=log,
        is_wide=is_forgetful,
        has_fleeting=bool(profile.weather_s) and chance.random() < 0.3,
        compactor=compactor,
    )


def _spilling(usual: Theme) -> Theme:
    """More busy producers than a control record keeps, at brokers whose store takes its time."""
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


def _passing(usual: Theme) -> Theme:
    """Many producers append a little and are forgotten; some come back after that. No clock jumps, no broker stalls."""
    return replace(
        usual,
        name="passing",
        fetch_limits=SMALL_FETCHES,
        log_limits=short_deadlines_log(small_log(DEFAULT_LIMITS)),
        crowd=Crowd(24, 4, 1.0, (0.02, 0.3, 8.0), is_narrow=True, start_s_max=60.0, delivery_timeout_s=DELIVERY_TIMEOUT_S),
        kinds=UNTIMED,
        weather_s=usual.weather_s * 2,
        is_wide=False,
        has_fleeting=False,
        faults_s=(40.0, 70.0),
        expiration_ms=EXPIRATION_MS,
        skews_ms=(0, 0, 40),
        compactor=short_deadlines_compactor(small_compactor(COMPACTOR_LIMITS)),
    )


def _churning(chance: random.Random, usual: Theme) -> Theme:
    """Brokers come and go all the time, so that their entries in a control record come and go too; only the log can tell a repetition."""
    return replace(
        usual,
        name="churning",
        fetch_limits=SMALL_FETCHES,
        log_limits=impatient_log(small_log(DEFAULT_LIMITS)),
        crowd=Crowd(chance.randint(4, 6), 40, 0.1, (0.1, 0.3)),
        kinds=CHURN,
        weather_s=usual.weather_s / CHURN_HASTE,
        metadata=replace(usual.metadata, is_sluggish=True),
        is_wide=False,
        has_fleeting=False,
        compactor=small_compactor(COMPACTOR_LIMITS),
    )


def _stubborn(usual: Theme) -> Theme:
    """Uploads fail for seconds, clients send each batch again by itself to the one broker they know, and strangers wait shortly: nothing
    else is late, so nothing can be on its way for longer.
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
