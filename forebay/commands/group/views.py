"""Groups for people."""

from collections.abc import Sequence

from forebay.commands.group.administration import AssignedTopic, GroupFacts, GroupLine, MemberFacts
from forebay.commands.group.lag import GroupLag
from forebay.commands.group.resetting import DeletedOffset, OffsetReset
from forebay.kafka_client.text import NOTHING, align, facts


def groups_table(groups: Sequence[GroupLine]) -> str:
    return align(("NAME", "STATE", "TYPE"), [(group.name, group.state, group.type or NOTHING) for group in groups])


def group_table(group: GroupFacts) -> str:
    """Members without their ids."""
    summary = facts(
        [
            ("name", group.name),
            ("state", group.state),
            ("type", group.type or NOTHING),
            ("assignor", group.assignor or NOTHING),
            ("coordinator", NOTHING if group.coordinator is None else f"{group.coordinator} (broker {group.coordinator_id})"),
            ("members", len(group.members)),
        ]
    )
    if not group.members:
        return summary
    rows = [(member.client_id or NOTHING, member.host, _assignment(member.assignment)) for member in group.members]
    return f"{summary}\n\n{align(('CLIENT ID', 'HOST', 'ASSIGNMENT'), rows)}"


def members_table(members: Sequence[MemberFacts]) -> str:
    return align(
        ("CLIENT ID", "HOST", "INSTANCE", "MEMBER", "ASSIGNMENT"),
        [
            (member.client_id or NOTHING, member.host, member.instance_id or NOTHING, member.member_id, _assignment(member.assignment))
            for member in members
        ],
    )


def lag_table(lag: GroupLag) -> str:
    rows = [
        (
            one.topic,
            one.partition,
            _or_nothing(one.committed),
            _or_nothing(one.end),
            _or_nothing(one.lag),
            one.client_id or NOTHING,
            one.host or NOTHING,
        )
        for one in lag.partitions
    ]
    summary = facts([("group", lag.group), ("state", lag.state), ("members", lag.members), ("lag", _total(lag))])
    if not rows:
        return summary
    return f"{summary}\n\n{align(('TOPIC', 'PARTITION', 'COMMITTED', 'END', 'LAG', 'CLIENT ID', 'HOST'), rows)}"


def lags_table(lags: Sequence[GroupLag]) -> str:
    return align(
        ("GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "UNKNOWN"),
        [(lag.group, lag.state, lag.members, len(lag.partitions), _or_nothing(lag.lag), lag.lag_unknown) for lag in lags],
    )


def resets_table(resets: Sequence[OffsetReset]) -> str:
    return align(("TOPIC", "PARTITION", "OLD", "NEW"), [(one.topic, one.partition, _or_nothing(one.old), one.new) for one in resets])


def resets_rows(resets: Sequence[OffsetReset]) -> str:
    """For `--from-file`."""
    return "\n".join(f"{one.topic},{one.partition},{one.new}" for one in resets)


def offsets_table(offsets: Sequence[DeletedOffset]) -> str:
    return align(("TOPIC", "PARTITION", "OFFSET"), [(one.topic, one.partition, one.offset) for one in offsets])


def _assignment(assignment: Sequence[AssignedTopic]) -> str:
    return " ".join(f"{one.topic}:{','.join(map(str, one.partitions))}" for one in assignment) or NOTHING


def _total(lag: GroupLag) -> int | str:
    if lag.lag is None or not lag.lag_unknown:
        return _or_nothing(lag.lag)
    return f"{lag.lag} (unknown in {lag.lag_unknown} of {len(lag.partitions)} partitions)"


def _or_nothing(number: int | None) -> int | str:
    return NOTHING if number is None else number
