"""A group as it is kept: the generation and its members. Heartbeats and requests that wait are in memory only."""

from dataclasses import replace

from broker.groups.members import Group, GroupState, Member, Protocol
from storage.catalog.groups import GroupRecord, MemberRecord
from storage.errors import Corrupt


def record_of(group: Group, *, owner: int, topics: tuple[str, ...], topic_pages: int, has_expiries: bool) -> GroupRecord:
    return GroupRecord(
        group=group.group_id,
        owner=owner,
        state=group.state.value,
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        topics=topics,
        topic_pages=topic_pages,
        empty_since_ms=group.empty_since_ms,
        has_expiries=has_expiries,
        members=tuple(
            MemberRecord(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=round(member.session_timeout_s * 1_000),
                rebalance_timeout_ms=round(member.rebalance_timeout_s * 1_000),
                protocols=member.protocols,
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )


def group_of(record: GroupRecord, *, now_s: float, now_ms: int) -> Group:
    """As its next coordinator goes on with it: every member has a whole session timeout, and who was to join or sync as long as ever.

    A group that had members and is kept without them has been empty since now. Raises `Corrupt` of a state that there is not.
    """
    try:
        state = GroupState(record.state)
    except ValueError as error:
        raise Corrupt(f"unknown state of a group: group={record.group!r} state={record.state!r}") from error
    members = {
        one.member_id: Member(
            member_id=one.member_id,
            instance_id=one.instance_id,
            client_id=one.client_id,
            client_host=one.client_host,
            session_timeout_s=one.session_timeout_ms / 1_000,
            rebalance_timeout_s=one.rebalance_timeout_ms / 1_000,
            protocols=tuple(Protocol(*protocol) for protocol in one.protocols),
            assignment=one.assignment,
            expires_s=now_s + one.session_timeout_ms / 1_000,
        )
        for one in record.members
    }
    group = Group(group_id=record.group, protocol_type=record.protocol_type, generation=record.generation)
    if not members:
        return replace(group, empty_since_ms=record.empty_since_ms if state is GroupState.EMPTY else now_ms)
    due_s = now_s + max(member.rebalance_timeout_s for member in members.values())
    return replace(
        group,
        state=state,
        protocol=record.protocol,
        leader=record.leader,
        members=members,
        due_s=None if state is GroupState.STABLE else due_s,
        unsynced=frozenset() if state is GroupState.STABLE else frozenset(members),
    )
