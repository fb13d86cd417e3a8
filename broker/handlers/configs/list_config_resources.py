"""ListConfigResources (API key 74), v0-v1.

v1: topics and brokers; loggers, client metrics and groups have no configs. No types means all of them; a type that does not exist
is UNSUPPORTED_VERSION. v0 asks for client metrics alone.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1 import ListConfigResourcesRequest, ListConfigResourcesResponse
from kio.schema.list_config_resources.v1.response import ConfigResource

from broker.handling.configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from broker.handling.context import BrokerParts, Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i8
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.errors import StorageError

_TYPES: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
_TYPED_MINIMUM: Final = 1


async def handle(context: Context, request: Request[ListConfigResourcesRequest]) -> ListConfigResourcesResponse:
    wanted = set(request.body.resource_types or _TYPES) if request.api_version >= _TYPED_MINIMUM else {CLIENT_METRICS}
    if not wanted.issubset(_TYPES):
        return _answer(ErrorCode.unsupported_version, [])
    try:
        resources = await _resources(context.parts, wanted)
    except StorageError as error:
        return _answer(error_code_of(error), [])
    return _answer(ErrorCode.none, await Turns().each(_resource, resources))


async def _resources(parts: BrokerParts, wanted: set[int]) -> list[tuple[int, str]]:
    resources: list[tuple[int, str]] = []
    if TOPIC in wanted:
        resources += await Turns().each(lambda topic: (TOPIC, topic.name), await parts.topics.all())
    if BROKER in wanted:
        resources += [(BROKER, str(record.broker_id)) for record in await parts.brokers.live()]
    return resources


def _resource(found: tuple[int, str]) -> ConfigResource:
    kind, name = found
    return ConfigResource(resource_name=name, resource_type=as_i8(kind))


def _answer(error: ErrorCode, resources: list[ConfigResource]) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(throttle_time=as_field(0), error_code=error, config_resources=tuple(resources))
