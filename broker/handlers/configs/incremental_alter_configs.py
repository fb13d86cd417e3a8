"""IncrementalAlterConfigs (API key 44), v0-v1.

Topics: SET, DELETE (back to the default), APPEND and SUBTRACT (lists only), validated against storage/catalog/topic_configs.py as a whole
and stored by one CAS: all keys of a topic change, or none. What a key changes takes effect at this broker at once, at others with the next
hint, at the latest when their cached topic expires (30 s). validate_only is honoured.
Brokers are configured where they are started: every change but DELETE is INVALID_REQUEST, as are other resource types.

Differs from Apache Kafka: a second tier is refused (`Effect.REFUSED`), and what no broker enforces yet is kept and named in the log.
"""

from collections import Counter
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import AlterableConfig, AlterConfigsResource
from kio.schema.incremental_alter_configs.v1.response import AlterConfigsResourceResponse

from broker.handling.configs import KEYS_MAX, TOPIC, ConfigChange, ResourceChange, alter_all
from broker.handling.context import Context
from broker.handling.errors import Refusal
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic_configs import Alteration, Operation, alter

_OPERATIONS: Final = {operation.value: operation for operation in Operation}


async def handle(context: Context, request: Request[IncrementalAlterConfigsRequest]) -> IncrementalAlterConfigsResponse:
    body = request.body
    turns = Turns()
    changes = await turns.each(_accept, body.resources)
    refusals = await alter_all(context.parts, changes, context.by(request.client_id), validate_only=body.validate_only)
    return IncrementalAlterConfigsResponse(
        throttle_time=as_field(0),
        responses=tuple(await turns.each(_respond, zip(body.resources, refusals, strict=True))),
    )


def _respond(answer: tuple[AlterConfigsResource, Refusal | None]) -> AlterConfigsResourceResponse:
    resource, refusal = answer
    return AlterConfigsResourceResponse(
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _accept(resource: AlterConfigsResource) -> ResourceChange:
    # Taking back what a broker was never given changes nothing: reassignment tools do so with throttles.
    is_topic = resource.resource_type == TOPIC
    keys = {config.name for config in resource.configs[:KEYS_MAX] if is_topic or config.config_operation != Operation.DELETE.value}
    return ResourceChange(resource.resource_type, resource.resource_name, keys, _change_of(resource.configs))


def _change_of(configs: tuple[AlterableConfig, ...]) -> ConfigChange | Refusal:
    if len(configs) > KEYS_MAX:
        return Refusal(
            ErrorCode.invalid_request, f"a request alters at most {KEYS_MAX} configs of a resource, and this one names {len(configs)}"
        )
    twice = sorted(name for name, count in Counter(config.name for config in configs).items() if count > 1)
    if twice:
        return Refusal(ErrorCode.invalid_request, f"error due to duplicate config keys: {', '.join(twice)}")
    alterations = []
    for config in configs:
        operation = _OPERATIONS.get(config.config_operation)
        if operation is None:
            return Refusal(ErrorCode.invalid_request, f"unknown operation {config.config_operation} for {config.name}")
        if config.value is None and operation is not Operation.DELETE:
            return Refusal(ErrorCode.invalid_request, f"null value not supported for: {config.name}")
        alterations.append(Alteration(config.name, operation, config.value or ""))
    return lambda current: alter(current, alterations)
