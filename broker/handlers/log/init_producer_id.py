"""InitProducerId (API key 22), v0-v5, for idempotent producers.

A fresh producer id with epoch 0, unique in the cluster, also for a producer that gives the id and epoch it has (v3+, KIP-360): nobody
keeps the epochs of producers without a transactional id, and two that were given the same next epoch would pass for one another.

Differs from Apache Kafka: transactions are not served yet, so a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
the only error that says nothing else and that librdkafka does not try again. FindCoordinator, which clients ask first, says it in words.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5 import InitProducerIdRequest, InitProducerIdResponse

from broker.handling.context import Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i16, as_producer_id
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from storage.errors import StorageError

_NONE: Final = -1


async def handle(context: Context, request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    body = request.body
    if body.transactional_id is not None:
        return _refuse(ErrorCode.transactional_id_authorization_failed)
    if (body.producer_id == _NONE) != (body.producer_epoch == _NONE) or min(body.producer_id, body.producer_epoch) < _NONE:
        return _refuse(ErrorCode.invalid_request)
    try:
        return _answer(ErrorCode.none, await context.parts.producer_ids.next(), 0)
    except StorageError as error:
        # What Kafka says while a broker waits for its next block of ids: clients ask the same broker again.
        code = error_code_of(error)
        return _refuse(ErrorCode.coordinator_load_in_progress if code.retriable else code)


def _refuse(error: ErrorCode) -> InitProducerIdResponse:
    return _answer(error, _NONE, _NONE)


def _answer(error: ErrorCode, producer_id: int, producer_epoch: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=as_field(0),
        error_code=error,
        producer_id=as_producer_id(producer_id),
        producer_epoch=as_i16(producer_epoch),
    )
