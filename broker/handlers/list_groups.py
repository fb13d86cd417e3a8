"""ListGroups (API key 16), v0-v5. The groups of this broker's slots; clients ask every broker. Filters by state (v4) and type (v5).

A group whose record cannot be read is left out, and logged: it does not hide the others.
"""

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.types import GroupId

from broker.groups.loaded import LoadedGroup
from broker.handlers.context import Context
from broker.protocol.codec import as_field
from broker.protocol.request import Request
from storage.catalog.groups import GroupHead
from storage.errors import StorageError

CLASSIC = "classic"


async def handle(context: Context, request: Request[ListGroupsRequest]) -> ListGroupsResponse:
    try:
        found = await context.parts.groups.listed()
    except StorageError:
        return ListGroupsResponse(throttle_time=as_field(0), error_code=ErrorCode.coordinator_not_available, groups=())
    states = {state.lower() for state in request.body.states_filter}
    types = {kind.lower() for kind in request.body.types_filter}
    groups = [_listed(group) for group in found]
    return ListGroupsResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode.none,
        groups=tuple(group for group in groups if (not states or group.group_state.lower() in states) and (not types or CLASSIC in types)),
    )


def _listed(group: GroupHead | LoadedGroup) -> ListedGroup:
    if isinstance(group, LoadedGroup):
        name, protocol_type, state = group.group.group_id, group.group.protocol_type, group.group.state.value
    else:
        name, protocol_type, state = group.group, group.protocol_type, group.state
    return ListedGroup(group_id=GroupId(name), protocol_type=protocol_type or "", group_state=state, group_type=CLASSIC)
