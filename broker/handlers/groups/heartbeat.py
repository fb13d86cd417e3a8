"""Heartbeat (API key 12), v0-v4. In memory only: no store is asked while the group stays with this broker."""

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse

from broker.groups.group import Closed
from broker.groups.state import GroupError, Heartbeat
from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request


async def handle(context: Context, request: Request[HeartbeatRequest]) -> HeartbeatResponse:
    body = request.body
    error = GroupError.INVALID_GROUP_ID
    if body.group_id:
        heartbeat = Heartbeat(token=0, member_id=body.member_id, instance_id=body.group_instance_id, generation=body.generation_id)
        try:
            error = await context.parts.groups.heartbeat(body.group_id, heartbeat)
        except Closed as closed:
            # While a group is being loaded its members go on, as in Kafka: some clients give up on an error here.
            error = GroupError.NONE if closed.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS else closed.error
    return HeartbeatResponse(throttle_time=as_field(0), error_code=ErrorCode(error))
