"""JoinGroup (API key 11), v0-v9.

Waits until the group's next generation begins: at most the rebalance timeout of its members, or the initial delay of a group that is new.
From v4 on a client without a member id is given one and asked to join again with it (MEMBER_ID_REQUIRED), unless it is a static member.
"""

from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9 import JoinGroupRequest, JoinGroupResponse
from kio.schema.join_group.v9.response import JoinGroupResponseMember

from broker.groups.group import Closed
from broker.groups.state import GroupError, Join, JoinAnswer, Protocol
from broker.handling.context import Context
from broker.handling.kio_types import as_i32
from broker.protocol.codec import as_field, milliseconds
from broker.protocol.wire import Request
from runtime.turns import Turns


async def handle(context: Context, request: Request[JoinGroupRequest]) -> JoinGroupResponse:
    body = request.body
    if not body.group_id:
        return _respond(request, JoinAnswer(error=GroupError.INVALID_GROUP_ID, member_id=body.member_id))
    groups = context.parts.groups
    session_timeout_s = milliseconds(body.session_timeout) / 1_000
    rebalance_timeout_ms = milliseconds(body.rebalance_timeout)
    client_id = request.client_id or ""
    join = Join(
        token=0,
        member_id=body.member_id,
        new_member_id=groups.new_member_id(body.group_instance_id or client_id),
        instance_id=body.group_instance_id,
        client_id=client_id,
        client_host=f"/{context.client_host}",
        session_timeout_s=session_timeout_s,
        # v0 has none.
        rebalance_timeout_s=rebalance_timeout_ms / 1_000 if rebalance_timeout_ms >= 0 else session_timeout_s,
        protocol_type=body.protocol_type,
        protocols=tuple(await Turns().each(lambda one: Protocol(one.name, one.metadata), body.protocols)),
        knows_member_ids=request.api_version >= 4,
        knows_skip_assignment=request.api_version >= 9,
    )
    try:
        answer = await groups.join(body.group_id, join)
    except Closed as closed:
        answer = JoinAnswer(error=closed.error, member_id=body.member_id)
    return _respond(request, answer)


def _respond(request: Request[JoinGroupRequest], answer: JoinAnswer) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode(answer.error),
        generation_id=as_i32(answer.generation),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol if request.api_version >= 7 else answer.protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in answer.members
        ),
    )
