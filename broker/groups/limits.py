"""Bounds of groups, as values that constructors take: a test or a simulation gives others."""

from dataclasses import dataclass
from typing import Final

from storage.limits import WRITE_REQUEST_OPS_MAX


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
    question_patience_s: float = 3.0
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
