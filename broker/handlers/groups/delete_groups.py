"""DeleteGroups (API key 42), v0-v2. A group without members goes with all its offsets."""

from typing import Final

from kio.schema.delete_groups.v2 import DeleteGroupsRequest, DeleteGroupsResponse
from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from broker.groups.group import Closed
from broker.groups.state import GroupError
from broker.handling.administration import Requester
from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns

LINE_AS_GROUPS: Final = 5
"""What it costs to log a group, beside answering it."""


async def handle(context: Context, request: Request[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    named, by = request.body.groups_names, context.by(request.client_id)

    async def delete(place: int) -> GroupError:
        return await _delete(context, named[place], by)

    errors = await context.parts.groups.each(named, delete, late=GroupError.REQUEST_TIMED_OUT)
    turns = Turns()
    with context.parts.administration.failures("group_deleted", by) as failures:
        for group_id, error in zip(named, errors, strict=True):
            await turns.spent(LINE_AS_GROUPS)
            if error is not GroupError.NONE:
                failures.add(group_id, error=ErrorCode(error), group=group_id)
    return DeleteGroupsResponse(
        throttle_time=as_field(0),
        results=tuple(await turns.each(_result, zip(named, errors, strict=True))),
    )


def _result(answer: tuple[GroupId, GroupError]) -> DeletableGroupResult:
    group_id, error = answer
    return DeletableGroupResult(group_id=group_id, error_code=ErrorCode(error))


async def _delete(context: Context, group_id: str, by: Requester) -> GroupError:
    try:
        error = await context.parts.groups.delete(group_id)
    except Closed as closed:
        return closed.error
    except TimeoutError:
        return GroupError.REQUEST_TIMED_OUT
    if error is GroupError.NONE:
        context.parts.administration.changed("group_deleted", by, group=group_id)
    return error
