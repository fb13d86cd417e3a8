"""DescribeClientQuotas (API key 48), v0-v1.

There are no quotas, so no filter matches any. A filter is checked as Kafka checks it: an entity type that is empty or named twice, an
unknown match type, or a match that contradicts its type is INVALID_REQUEST; another entity type than user, client-id and ip is
UNSUPPORTED_VERSION.
"""

from collections.abc import Sequence
from typing import Final

from kio.schema.describe_client_quotas.v1 import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from kio.schema.describe_client_quotas.v1.request import ComponentData
from kio.schema.errors import ErrorCode

from broker.handling.context import Context
from broker.handling.errors import Refusal
from broker.protocol.codec import as_field
from broker.protocol.wire import Request

_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT, _ANY = 0, 1, 2


async def handle(_context: Context, request: Request[DescribeClientQuotasRequest]) -> DescribeClientQuotasResponse:
    refusal = check(request.body.components)
    return DescribeClientQuotasResponse(
        throttle_time=as_field(0),
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
        entries=None if refusal else (),
    )


def check(components: Sequence[ComponentData]) -> Refusal | None:
    seen = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            return Refusal(ErrorCode.invalid_request, "unexpected empty filter component entity type")
        if kind in seen:
            return Refusal(ErrorCode.invalid_request, f"duplicate filter component entity type {kind!r}")
        seen.add(kind)
        if kind not in _ENTITY_TYPES:
            return Refusal(ErrorCode.unsupported_version, f"unsupported filter component entity type {kind!r}")
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            return Refusal(ErrorCode.invalid_request, f"unexpected match type {component.match_type}")
        if (component.match_type == _EXACT) != (component.match is not None):
            return Refusal(ErrorCode.invalid_request, "an exact match, and no other, has a name to match")
    return None
