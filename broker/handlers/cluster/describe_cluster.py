"""DescribeCluster (API key 60), v0-v2.

The live brokers at the listener that was asked by, this one as controller, or else one of the role `admin`: any broker can do what a
controller does.
endpoint_type (v1+): 1 is brokers; 2, controllers, is refused as a Kafka broker refuses it, anything else is unsupported.
A broker that is not alive has no record, so include_fenced_brokers (v2) finds none.
"""

from typing import Final

from kio.schema.describe_cluster.v2 import DescribeClusterRequest, DescribeClusterResponse
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker
from kio.schema.errors import ErrorCode

from broker.handling.context import Context, Node, controller_of, live_and_listed
from broker.handling.errors import error_code_of
from broker.handling.kio_types import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED_FOR, as_broker_id, as_i8, as_i32
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from storage.errors import StorageError

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


async def handle(context: Context, request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    body = request.body
    if body.endpoint_type == _CONTROLLERS:
        return _refuse(request, ErrorCode.mismatched_endpoint_type, "this is a broker, and a controller was asked for")
    if body.endpoint_type != _BROKERS:
        return _refuse(request, ErrorCode.unsupported_endpoint_type, f"unsupported endpoint type {body.endpoint_type}")
    try:
        _, nodes = await live_and_listed(context)
    except StorageError as error:
        return _refuse(request, error_code_of(error), str(error))
    return _answer(request, ErrorCode.none, None, context.parts.cluster_id, nodes, own_id=context.parts.broker_id)


def _refuse(request: Request[DescribeClusterRequest], error: ErrorCode, message: str) -> DescribeClusterResponse:
    return _answer(request, error, message, "", [])


def _answer(
    request: Request[DescribeClusterRequest],
    error: ErrorCode,
    message: str | None,
    cluster_id: str,
    nodes: list[Node],
    *,
    own_id: int = -1,
) -> DescribeClusterResponse:
    operations = CLUSTER_OPERATIONS if request.body.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED_FOR
    return DescribeClusterResponse(
        throttle_time=as_field(0),
        error_code=error,
        error_message=message,
        # What is refused is answered about brokers, as Kafka does.
        endpoint_type=as_i8(_BROKERS),
        cluster_id=cluster_id,
        controller_id=as_broker_id(controller_of(nodes, own_id=own_id)),
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=as_broker_id(node.broker_id),
                host=node.host,
                port=as_i32(node.port),
                rack=node.rack,
                is_fenced=False,
            )
            for node in nodes
        ),
        cluster_authorized_operations=as_i32(operations if error is ErrorCode.none else OPERATIONS_NOT_ASKED_FOR),
    )
