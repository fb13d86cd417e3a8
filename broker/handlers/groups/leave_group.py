"""LeaveGroup (API key 13), v0-v5. One member until v2, then any number; static members by their instance id alone, too (KIP-345)."""

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v2 import LeaveGroupRequest as LeaveGroupRequestOfOne
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.leave_group.v5.response import MemberResponse

from broker.groups.group import Closed
from broker.groups.state import GroupError, Leave
from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns

LEAVING_AT_ONCE: Final = 100
"""What a group decides in one turn of the event loop; the rest of a request follow one another."""


async def handle(context: Context, request: Request[LeaveGroupRequestOfOne | LeaveGroupRequest]) -> LeaveGroupResponse:
    body = request.body
    if not body.group_id:
        return _respond(GroupError.INVALID_GROUP_ID)
    members: tuple[tuple[str, str | None], ...]
    if isinstance(body, LeaveGroupRequestOfOne):
        members = ((body.member_id, None),)
    else:
        members = tuple(await Turns().each(lambda one: (one.member_id, one.group_instance_id), body.members))
    errors: list[GroupError] = []
    try:
        for begin in range(0, max(len(members), 1), LEAVING_AT_ONCE):
            some = members[begin : begin + LEAVING_AT_ONCE]
            errors += (await context.parts.groups.leave(body.group_id, Leave(token=0, members=some))).errors
            if len(members) > LEAVING_AT_ONCE:
                await asyncio.sleep(0)
    except Closed as closed:
        return _respond(closed.error)
    if isinstance(body, LeaveGroupRequestOfOne):
        return _respond(errors[0])
    left = zip(members, errors, strict=True)
    return _respond(
        GroupError.NONE,
        tuple(await Turns().each(_left, left)),
    )


def _left(one: tuple[tuple[str, str | None], GroupError]) -> MemberResponse:
    (member_id, instance_id), error = one
    return MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=ErrorCode(error))


def _respond(error: GroupError, members: tuple[MemberResponse, ...] = ()) -> LeaveGroupResponse:
    return LeaveGroupResponse(throttle_time=as_field(0), error_code=ErrorCode(error), members=members)
