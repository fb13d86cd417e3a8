"""ListPartitionReassignments (API key 46), v0.

There are none: a partition belongs to no broker, so none is ever on its way from one to another.
"""

from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse

from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request


async def handle(_context: Context, _request: Request[ListPartitionReassignmentsRequest]) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(throttle_time=as_field(0), error_code=ErrorCode.none, error_message=None, topics=())
