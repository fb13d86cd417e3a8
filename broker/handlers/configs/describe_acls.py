"""DescribeAcls (API key 29), v1-v3.

There is no authorizer: SECURITY_DISABLED, as a Kafka broker without one answers.
"""

from kio.schema.describe_acls.v3 import DescribeAclsRequest, DescribeAclsResponse
from kio.schema.errors import ErrorCode

from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request


async def handle(_context: Context, _request: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode.security_disabled,
        error_message="no authorizer is configured: every client may do everything",
        resources=(),
    )
