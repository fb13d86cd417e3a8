"""ApiVersions (API key 18), v0-v4.

Answers with the table of broker/protocol/apis.py, whoever asks; no features are advertised, so older versions need none left out.
A client that calls itself by a name or version that KIP-511 does not allow (v3+) gets INVALID_REQUEST.
A version above ours is answered in the format of v0 (`unsupported_version`), which every client can read.
"""

import re
from functools import cache
from typing import Final

from kio.schema.api_versions.v4 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.api_versions.v4.response import ApiVersion
from kio.schema.errors import ErrorCode

from broker.handling.context import Context
from broker.handling.kio_types import as_i16
from broker.protocol import apis
from broker.protocol.codec import as_field
from broker.protocol.wire import Request

API_KEY: Final = 18
_SOFTWARE_VERSION_MINIMUM: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(context: Context, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:  # noqa: ARG001
    body = request.body
    if request.api_version >= _SOFTWARE_VERSION_MINIMUM and not (
        _SOFTWARE.fullmatch(body.client_software_name) and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        return _answer(ErrorCode.invalid_request, ())
    return _answer(ErrorCode.none, _advertised())


def unsupported_version() -> ApiVersionsResponse:
    """The answer to a version we do not know, to be encoded as v0: it names the versions of ApiVersions to ask with, as Kafka's does."""
    return _answer(ErrorCode.unsupported_version, tuple(api for api in _advertised() if api.api_key == API_KEY))


@cache
def _advertised() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=as_i16(api.key), min_version=as_i16(api.minimum), max_version=as_i16(api.maximum)) for api in sorted(apis.APIS)
    )


def _answer(error: ErrorCode, api_keys: tuple[ApiVersion, ...]) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error, api_keys=api_keys, throttle_time=as_field(0))
