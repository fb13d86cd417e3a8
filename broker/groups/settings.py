"""What an operator may set about groups, as their code takes it: seconds and milliseconds of the durations in `groups.*`."""

from dataclasses import dataclass
from datetime import timedelta

from process.settings.sections import GroupsSettings
from storage.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Defaults are Kafka's, but for the bounds on members and on memory, which Kafka has not."""

    initial_delay_s: float = 3.0
    session_timeout_s_min: float = 6.0
    session_timeout_s_max: float = 1_800.0
    members_max: int = 5_000
    member_bytes_max: int = 2 * MIB
    memory_bytes_max: int = 256 * MIB
    offset_metadata_chars_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600 * 1_000
    retention_check_s: float = 600.0

    def __post_init__(self) -> None:
        assert self.initial_delay_s >= 0
        assert 0 < self.session_timeout_s_min <= self.session_timeout_s_max
        assert self.offsets_retention_ms > 0
        assert self.retention_check_s > 0


def group_settings(groups: GroupsSettings) -> GroupSettings:
    return GroupSettings(
        initial_delay_s=groups.initial_rebalance_delay.total_seconds(),
        session_timeout_s_min=groups.session_timeout_min.total_seconds(),
        session_timeout_s_max=groups.session_timeout_max.total_seconds(),
        members_max=groups.max_size,
        member_bytes_max=groups.member_max_size,
        memory_bytes_max=groups.memory_bytes,
        offset_metadata_chars_max=groups.offset_metadata_max_size,
        offsets_retention_ms=groups.offsets_retention // timedelta(milliseconds=1),
        retention_check_s=groups.offsets_retention_check_interval.total_seconds(),
    )
