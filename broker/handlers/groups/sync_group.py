"""SyncGroup (API key 14), v0-v5.

The leader brings the assignments, which are durable before anybody has one; the others wait for it, at most for the rebalance timeout.
From v5 on a request names its protocol type and protocol; one that does not is INCONSISTENT_GROUP_PROTOCOL.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse

from broker.groups.group import Closed
from broker.groups.state import GroupError, Sync, SyncAnswer
from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns

_NAMED_PROTOCOL_MINIMUM: Final = 5


async def handle(context: Context, request: Request[SyncGroupRequest]) -> SyncGroupResponse:
    body = request.body
    if request.api_version >= _NAMED_PROTOCOL_MINIMUM and None in (body.protocol_type, body.protocol_name):
        return _respond(SyncAnswer(error=GroupError.INCONSISTENT_GROUP_PROTOCOL))
    if not body.group_id:
        return _respond(SyncAnswer(error=GroupError.INVALID_GROUP_ID))
    sync = Sync(
        token=0,
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        generation=body.generation_id,
        protocol_type=body.protocol_type,
        protocol=body.protocol_name,
        assignments=tuple(await Turns().each(lambda one: (one.member_id, one.assignment), body.assignments)),
    )
    try:
        return _respond(await context.parts.groups.sync(body.group_id, sync))
    except Closed as closed:
        # That it is being loaded clients do not expect here, and Java's give up; for a rebalance they join again, which waits for that.
        is_loading = closed.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
        return _respond(SyncAnswer(error=GroupError.REBALANCE_IN_PROGRESS if is_loading else closed.error))


def _respond(answer: SyncAnswer) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode(answer.error),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
