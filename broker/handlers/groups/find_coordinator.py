"""FindCoordinator (API key 10), v0-v6.

Groups (key type 0) have 64 slots, and a slot one broker: the one that has claimed it, else the one that may. v0-v3 ask for one key, v4 and
later for several. Transactional ids (1) have no coordinator, as transactions are not served yet, and their producers learn it here, where
there is room for words: Java (v4 and later) gives up for an error that it does not expect and shows the message; librdkafka (up to v2)
gives up for TRANSACTIONAL_ID_AUTHORIZATION_FAILED alone and shows the message beside it.
Share groups (2) and unknown key types get INVALID_REQUEST. An empty key is looked up like any other, as in Kafka: it is refused
when the group is joined.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator import v3, v6
from kio.schema.find_coordinator.v6.response import Coordinator

from broker.handling.context import Context, Node, live_nodes
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_broker_id, as_i32
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.errors import StorageError

FindCoordinatorRequest = v3.FindCoordinatorRequest | v6.FindCoordinatorRequest
FindCoordinatorResponse = v3.FindCoordinatorResponse | v6.FindCoordinatorResponse

_GROUP: Final = 0
_TRANSACTION: Final = 1
_NO_NODE: Final = Node(-1, "", -1, None)
_SEVERAL_MINIMUM: Final = 4
NO_TRANSACTIONS: Final = "transactions are not served by Forebay yet: remove transactional.id; idempotent producers are served"


class _Answer(NamedTuple):
    error: ErrorCode
    message: str | None
    node: Node


async def handle(context: Context, request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    body = request.body
    if isinstance(body, v3.FindCoordinatorRequest):
        (found,) = await _find(context, request.api_version, body.key_type, [body.key])
        return v3.FindCoordinatorResponse(
            throttle_time=as_field(0),
            error_code=found.error,
            error_message=found.message,
            node_id=as_broker_id(found.node.broker_id),
            host=found.node.host,
            port=as_i32(found.node.port),
        )
    answers = await _find(context, request.api_version, body.key_type, body.coordinator_keys)
    return v6.FindCoordinatorResponse(
        throttle_time=as_field(0),
        coordinators=tuple(await Turns().each(_coordinator, zip(body.coordinator_keys, answers, strict=True))),
    )


def _coordinator(answer: tuple[str, _Answer]) -> Coordinator:
    key, found = answer
    return Coordinator(
        key=key,
        node_id=as_broker_id(found.node.broker_id),
        host=found.node.host,
        port=as_i32(found.node.port),
        error_code=found.error,
        error_message=found.message,
    )


async def _find(context: Context, version: int, key_type: int, sought: Sequence[str]) -> list[_Answer]:
    if key_type == _TRANSACTION:
        refusal = ErrorCode.transactional_id_authorization_failed if version < _SEVERAL_MINIMUM else ErrorCode.invalid_request
        return [_Answer(refusal, NO_TRANSACTIONS, _NO_NODE)] * len(sought)
    if key_type != _GROUP:
        message = f"coordinators of key type {key_type} are not supported"
        return [_Answer(ErrorCode.invalid_request, message, _NO_NODE)] * len(sought)
    try:
        # Among all brokers, not only those that this listener reaches: the answer must be the same at every listener.
        holders = await context.parts.groups.slots.holders(sought)
        nodes = {node.broker_id: node for node in await live_nodes(context)}
    except StorageError as error:
        code = error_code_of(error)
        return [_Answer(ErrorCode.coordinator_not_available if code.retriable else code, str(error), _NO_NODE)] * len(sought)
    return await Turns().each(lambda key: _answer(context, holders[key], nodes), sought)


def _answer(context: Context, coordinator: int | None, nodes: Mapping[int, Node]) -> _Answer:
    if coordinator is None:
        return _Answer(ErrorCode.coordinator_not_available, "no broker is registered", _NO_NODE)
    node = nodes.get(coordinator)
    if node is None:
        message = f"broker {coordinator} has no advertised address for listener {context.listener!r}"
        return _Answer(ErrorCode.coordinator_not_available, message, _NO_NODE)
    return _Answer(ErrorCode.none, None, node)
