"""ListGroups (API key 16), v0-v5. The groups of this broker's slots; clients ask every broker. Filters by state (v4) and type (v5).

A group whose record cannot be read is left out, and logged: it does not hide the others. While a shard of the metadata store does not
answer, the groups of the others are answered beside COORDINATOR_LOAD_IN_PROGRESS, as Kafka did while it loaded a part of them (up to 3.x;
later it answers with the error alone); beside COORDINATOR_NOT_AVAILABLE, those that are known while nobody can say which are this broker's.
Java's admin client asks again on either until its timeout, and then names the broker that could not say; librdkafka's gives both.
"""

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.types import GroupId

from broker.groups.group import LoadedGroup
from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.groups import GroupHead

CLASSIC = "classic"


async def handle(context: Context, request: Request[ListGroupsRequest]) -> ListGroupsResponse:
    found = await context.parts.groups.listed()
    turns = Turns()
    states = set(await turns.each(str.lower, request.body.states_filter))
    types = set(await turns.each(str.lower, request.body.types_filter))
    groups = await turns.each(_listed, found.groups)
    return ListGroupsResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode(found.error),
        groups=tuple(group for group in groups if (not states or group.group_state.lower() in states) and (not types or CLASSIC in types)),
    )


def _listed(group: GroupHead | LoadedGroup) -> ListedGroup:
    if isinstance(group, LoadedGroup):
        name, protocol_type, state = group.group.group_id, group.group.protocol_type, group.group.state.value
    else:
        name, protocol_type, state = group.group, group.protocol_type, group.state
    return ListedGroup(group_id=GroupId(name), protocol_type=protocol_type or "", group_state=state, group_type=CLASSIC)
