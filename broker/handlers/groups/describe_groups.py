"""DescribeGroups (API key 15), v0-v6.

An unknown group is GROUP_ID_NOT_FOUND from v6 on, before that a group in state Dead. What members say is shown while the group is stable,
as in Kafka; what they were given, always.

Differs from Apache Kafka: a group that is named more than once is answered once.
"""

from kio.schema.describe_groups.v6 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from broker.groups.group import Closed, LoadedGroup
from broker.groups.state import Group, GroupError, GroupState, Member
from broker.handling.context import Context
from broker.handling.kio_types import GROUP_OPERATIONS, OPERATIONS_NOT_ASKED_FOR, as_i32
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns

DEAD = "Dead"
_NOT_FOUND_ERROR_MINIMUM = 6


async def handle(context: Context, request: Request[DescribeGroupsRequest]) -> DescribeGroupsResponse:
    body = request.body
    operations = GROUP_OPERATIONS if body.include_authorized_operations else OPERATIONS_NOT_ASKED_FOR
    groups = context.parts.groups

    # Those in memory wait for nobody.
    named = list(dict.fromkeys(body.groups))
    found: dict[str, LoadedGroup | GroupError] = {group_id: known for group_id in named if (known := groups.loaded(group_id))}
    wanted = [group_id for group_id in named if group_id not in found]

    async def find(place: int) -> LoadedGroup | GroupError:
        try:
            return await groups.find(wanted[place])
        except Closed as closed:
            return closed.error

    late: LoadedGroup | GroupError = GroupError.COORDINATOR_LOAD_IN_PROGRESS
    found |= zip(wanted, await groups.each(wanted, find, late=late), strict=True)
    return DescribeGroupsResponse(
        throttle_time=as_field(0),
        groups=tuple(await Turns().each(lambda group_id: _describe(group_id, found[group_id], operations, request.api_version), named)),
    )


def _describe(group_id: GroupId, loaded: LoadedGroup | GroupError, operations: int, version: int) -> DescribedGroup:
    if isinstance(loaded, GroupError):
        return _none(group_id, loaded, "", operations)
    if not loaded.exists:
        if version < _NOT_FOUND_ERROR_MINIMUM:
            return _none(group_id, GroupError.NONE, DEAD, operations)
        return _none(group_id, GroupError.GROUP_ID_NOT_FOUND, DEAD, operations, f"Group {group_id} not found.")
    group = loaded.group
    return DescribedGroup(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if group.state is GroupState.STABLE else "",
        members=tuple(_member(group, member) for member in group.members.values()),
        authorized_operations=as_i32(operations),
    )


def _member(group: Group, member: Member) -> DescribedGroupMember:
    is_stable = group.state is GroupState.STABLE
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata_of(group.protocol) if is_stable else b"",
        member_assignment=member.assignment,
    )


def _none(group_id: GroupId, error: GroupError, state: str, operations: int, message: str | None = None) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode(error),
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=as_i32(operations),
    )
