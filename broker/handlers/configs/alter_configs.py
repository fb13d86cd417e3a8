"""AlterConfigs (API key 33), v0-v2: what kafkajs and aiokafka have.

All configs of a topic are replaced by those of the request: what it does not name goes back to its default. Resources, errors and
validate_only as in IncrementalAlterConfigs.
"""

from collections import Counter

from kio.schema.alter_configs.v2 import AlterConfigsRequest, AlterConfigsResponse
from kio.schema.alter_configs.v2.request import AlterableConfig, AlterConfigsResource
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse
from kio.schema.errors import ErrorCode

from broker.handling.configs import KEYS_MAX, ConfigChange, ResourceChange, alter_all
from broker.handling.context import Context
from broker.handling.errors import Refusal
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic_configs import validate


async def handle(context: Context, request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    body = request.body
    turns = Turns()
    changes = await turns.each(_accept, body.resources)
    refusals = await alter_all(context.parts, changes, context.by(request.client_id), validate_only=body.validate_only)
    return AlterConfigsResponse(
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
    keys = {config.name for config in resource.configs[:KEYS_MAX]}
    return ResourceChange(resource.resource_type, resource.resource_name, keys, _change_of(resource.configs))


def _change_of(configs: tuple[AlterableConfig, ...]) -> ConfigChange | Refusal:
    if len(configs) > KEYS_MAX:
        return Refusal(
            ErrorCode.invalid_request, f"a request alters at most {KEYS_MAX} configs of a resource, and this one names {len(configs)}"
        )
    occurrences = Counter(config.name for config in configs)
    twice = sorted(name for name, count in occurrences.items() if count > 1)
    if twice:
        return Refusal(ErrorCode.invalid_request, f"error due to duplicate config keys: {', '.join(twice)}")
    without_value = sorted(config.name for config in configs if config.value is None)
    if without_value:
        return Refusal(ErrorCode.invalid_request, f"null value not supported for: {', '.join(without_value)}")
    wanted = {config.name: config.value for config in configs}
    return lambda _current: validate(wanted)
