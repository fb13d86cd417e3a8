"""DescribeUserScramCredentials (API key 50), v0.

There are no users: all of them (null or an empty list) are none, one that is named is RESOURCE_NOT_FOUND, one that is named twice
DUPLICATE_RESOURCE.
"""

from kio.schema.describe_user_scram_credentials.v0 import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResult
from kio.schema.errors import ErrorCode

from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns


async def handle(_context: Context, request: Request[DescribeUserScramCredentialsRequest]) -> DescribeUserScramCredentialsResponse:
    turns = Turns()
    named = await turns.count(user.name for user in request.body.users or ())
    return DescribeUserScramCredentialsResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(await turns.each(lambda one: _result(one[0], is_twice=one[1] > 1), named.items())),
    )


def _result(name: str, *, is_twice: bool) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.duplicate_resource if is_twice else ErrorCode.resource_not_found,
        error_message="the request names this user more than once" if is_twice else "this user has no credentials: SCRAM is not served",
        credential_infos=(),
    )
