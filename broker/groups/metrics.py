"""What the coordinator of groups counts and times."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.groups.errors import GroupError
from broker.groups.events import Event, Join, Leave
from broker.groups.members import Group, GroupState
from runtime.telemetry import FEW_SECONDS_BUCKETS, Metric, Telemetry

GROUPS: Final = Metric("forebay_groups", "Groups that this broker has loaded, by state", ("state",), aggregation="sum")
MEMBERS: Final = Metric("forebay_group_members", "Members of the groups that this broker has loaded", aggregation="sum")
SLOTS: Final = Metric("forebay_coordinator_slots", "Coordinator slots that this broker holds, of 64", aggregation="sum")
REBALANCES: Final = Metric(
    "forebay_group_rebalances_total",
    "Rebalances that began, by cause: a member joined (or joined again with other wishes), left, or timed out",
    ("cause",),
)
COMMITS: Final = Metric(
    "forebay_group_commits_total", "Commits of offsets that the coordinator decided about, by Kafka's name of the answer", ("error",)
)
COMMIT_SECONDS: Final = Metric(
    "forebay_group_commit_duration_seconds", "Time from a commit of offsets to its durable end, refused and failed ones included"
)
EXPIRED: Final = Metric(
    "forebay_group_offsets_expired_total",
    "Committed offsets that were removed because their time was over, or because their topic is gone",
    ("cause",),
)
REMOVED: Final = Metric("forebay_groups_expired_total", "Groups that were removed because they had neither members nor offsets left")
TAKEOVER_SECONDS: Final = Metric(
    "forebay_group_takeover_duration_seconds",
    "Time that loading a group took, every one of its offsets written again",
    buckets=FEW_SECONDS_BUCKETS,
)

JOINED: Final = "join"
LEFT: Final = "leave"
TIMED_OUT: Final = "timeout"


class GroupMetrics:
    def __init__(self, telemetry: Telemetry) -> None:
        self._groups = telemetry.gauge(GROUPS)
        self._members = telemetry.gauge(MEMBERS)
        self._slots = telemetry.gauge(SLOTS)
        rebalances, expired = telemetry.counter(REBALANCES), telemetry.counter(EXPIRED)
        self._rebalances = {cause: rebalances.labels(cause) for cause in (JOINED, LEFT, TIMED_OUT)}
        self._commits = telemetry.counter(COMMITS)
        self._commit_seconds = telemetry.histogram(COMMIT_SECONDS)
        self._expired, self._orphaned = expired.labels("retention"), expired.labels("topic_deleted")
        self._removed = telemetry.counter(REMOVED)
        self._takeover_seconds = telemetry.histogram(TAKEOVER_SECONDS)

    def watch(self, groups: Callable[[], Iterable[Group]], slots: Callable[[], int]) -> None:
        """Ask these whenever somebody wants to know."""
        for state in GroupState:
            self._groups.labels(state.value).set_function(partial(_count, groups, state))
        self._members.set_function(lambda: float(sum(len(group.members) for group in groups())))
        self._slots.set_function(lambda: float(slots()))

    def note_step(self, before: Group, event: Event, after: Group) -> None:
        """Count the rebalance that `event` began, if it began one."""
        if after.state is GroupState.EMPTY or before.state is GroupState.PREPARING:
            return
        if after.state is GroupState.PREPARING or after.generation > before.generation:
            cause = JOINED if isinstance(event, Join) else LEFT if isinstance(event, Leave) else TIMED_OUT
            self._rebalances[cause].inc()

    def note_commit(self, error: GroupError, duration_s: float) -> None:
        self._commits.labels(error.name).inc()
        self._commit_seconds.observe(duration_s)

    def note_expired(self, *, expired: int, orphaned: int, is_over: bool) -> None:
        self._expired.inc(expired)
        self._orphaned.inc(orphaned)
        self._removed.inc(is_over)

    def note_takeover(self, duration_s: float) -> None:
        self._takeover_seconds.observe(duration_s)


def _count(groups: Callable[[], Iterable[Group]], state: GroupState) -> float:
    return float(sum(group.state is state for group in groups()))
