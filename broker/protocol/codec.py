"""Bytes of a frame to a request's values, a response's values to bytes: what the connection and the dispatcher call.

Values are kio's dataclasses, in the newest shape that fits (`request_class`, `response_class`), with plain integers: error codes
may be given as kio's `ErrorCode`, times are milliseconds although kio's annotations say timedelta (`milliseconds`, `as_field`).
Produce and Fetch have readers, writers and values of their own, in `produce` and `fetch`.

Only `ProtocolViolation` is raised for what a client sent. Values that a version cannot express are an AssertionError.
"""

import datetime
import struct
from collections.abc import Generator, Iterator
from functools import cache
from typing import Final, NamedTuple, cast

from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import i32Timedelta
from kio.static.protocol import Entity

from broker.protocol import fetch, produce, shapes, support, wire
from broker.protocol.decoder import StepwiseDecoder, at_once, compile_stepwise_decoder
from broker.protocol.encoder import StepwiseEncoder, compile_stepwise_encoder
from broker.protocol.errors import ProtocolViolation
from broker.protocol.schema import describe, to_milliseconds
from storage.vocabulary import Buffer

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
_FLEXIBLE_MINIMUM: Final = {PRODUCE: produce.FLEXIBLE_MINIMUM, FETCH: fetch.FLEXIBLE_MINIMUM}

_HEADER_V1: Final = struct.Struct(">hhih")
_CORRELATION_ID: Final = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """`body_position` is where the body starts in the frame; without meaning if the version is not served."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_header(frame: memoryview) -> RequestHeader:
    """The header of any request, also of one that is not served, so that its refusal can name it. Raise `ProtocolViolation`."""
    try:
        api_key, version, correlation_id, length = _HEADER_V1.unpack_from(frame)
        at = _HEADER_V1.size
        client_id = None
        if length != -1:
            stop = at + length
            if not at <= stop <= len(frame):
                wire.refuse_length("client_id", length, len(frame) - at)
            client_id = str(frame[at:stop], "utf-8")
            at = stop
        if support.is_served(api_key, version) and _has_flexible_request(api_key, version):
            at = at + 1 if not frame[at] else wire.skip_tags(frame, at, wire.ELEMENTS_MAX)[0]
    except wire.MALFORMED as error:
        raise ProtocolViolation(f"malformed request header: bytes={len(frame)} cause={error!r}") from error
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def decode_request(api_key: int, version: int, frame: memoryview, position: int) -> object:
    """The body that starts at `position`, as `request_class(api_key, version)`. Raise `ProtocolViolation`.

    The version is one that is served. Records of a Produce request are slices of `frame`; nothing else refers to it.
    """
    if api_key == PRODUCE:
        return produce.read_request(version, frame, position)
    if api_key == FETCH:
        return fetch.read_request(version, frame, position)
    return at_once(decode_in_steps(api_key, version, frame, position))


def decode_in_steps(api_key: int, version: int, frame: memoryview, position: int) -> Generator[None, None, object]:
    """As `decode_request`, not of Produce or Fetch: iterated over to its end, it yields wherever a pause is in place."""
    try:
        return (yield from _decoder(api_key, version)(bytes(frame[position:])))
    except wire.MALFORMED as error:
        raise ProtocolViolation(f"malformed request: api_key={api_key} version={version} bytes={len(frame)} cause={error!r}") from error


def encode_response(api_key: int, version: int, correlation_id: int, values: object) -> list[Buffer]:
    """Buffers of the response with its header, without the length before it.

    `values` are of any version's dataclass of the same API, field by name; `response_class` is compiled beforehand.
    """
    if api_key == PRODUCE:
        assert isinstance(values, produce.ProduceResponse)
        return [produce.write_response(version, correlation_id, values)]
    if api_key == FETCH:
        assert isinstance(values, fetch.FetchResponse)
        return fetch.write_response(version, correlation_id, values)
    out = bytearray()
    for _ in encode_in_steps(api_key, version, correlation_id, values, out):
        pass
    return [out]


def encode_in_steps(api_key: int, version: int, correlation_id: int, values: object, out: bytearray) -> Iterator[None]:
    """As `encode_response`, into `out` and not of Produce or Fetch: iterated over to its end, it yields wherever a pause is in place.

    `values` and `out` are its own until then.
    """
    cls = cast("type[Entity]", type(values))
    out += _CORRELATION_ID.pack(correlation_id)
    if _has_flexible_response_header(api_key, version):
        out.append(0)
    try:
        yield from _encoder(api_key, version, cls)(values, out)
    except (TypeError, AttributeError, struct.error) as error:
        raise AssertionError(f"not a value of this version: api_key={api_key} version={version} values={values!r}") from error


def request_class(api_key: int, version: int) -> type:
    """What `decode_request` answers with."""
    if api_key == PRODUCE:
        return produce.ProduceRequest
    if api_key == FETCH:
        return fetch.FetchRequest
    return shapes.request_shape(_served(api_key, version), version).cls


def response_class(api_key: int, version: int) -> type:
    """What a handler builds to answer this version: the newest class whose missing fields all have defaults."""
    if api_key == PRODUCE:
        return produce.ProduceResponse
    if api_key == FETCH:
        return fetch.FetchResponse
    return shapes.response_shape(_served(api_key, version), version).cls


def compile_in_steps(api_key: int, version: int) -> Iterator[None]:
    """Compile what a version needs that is not Produce's or Fetch's; iterated over to its end, it yields wherever a pause is in place.

    What is not compiled so is compiled when it is first used, all at once.
    """
    api = _served(api_key, version)
    # Kio's dataclasses are most of it: a few milliseconds for the request or the response of one version, imported with its first use.
    for structure, shape in ((shapes.request_structure, shapes.request_shape), (shapes.response_structure, shapes.response_shape)):
        structure(api_key, version)
        yield
        structure(api_key, api.maximum)
        yield
        shape(api, version)
        yield
    _has_flexible_response_header(api_key, version)
    _decoder(api_key, version)
    yield
    _encoder(api_key, version, response_class(api_key, version))
    yield


def milliseconds(field: datetime.timedelta) -> int:
    """The integer that a decoded time field really is."""
    return to_milliseconds(field)


def as_field(duration_ms: int) -> i32Timedelta:
    """Milliseconds as the type that kio's annotations ask for. Nothing is converted: the encoder takes integers."""
    return cast("i32Timedelta", duration_ms)


@cache
def _decoder(api_key: int, version: int) -> StepwiseDecoder:
    api = _served(api_key, version)
    return compile_stepwise_decoder(shapes.request_structure(api_key, version), shapes.request_shape(api, version))


@cache
def _encoder(api_key: int, version: int, values: type[Entity]) -> StepwiseEncoder:
    assert getattr(values, "__api_key__", None) == api_key, f"values of another API: api_key={api_key} values={values!r}"
    return compile_stepwise_encoder(shapes.response_structure(api_key, version), describe(values))


@cache
def _has_flexible_request(api_key: int, version: int) -> bool:
    if api_key in _FLEXIBLE_MINIMUM:
        return version >= _FLEXIBLE_MINIMUM[api_key]
    return bool(load_request_schema(api_key, version).__header_schema__.__flexible__)


@cache
def _has_flexible_response_header(api_key: int, version: int) -> bool:
    return bool(load_response_schema(api_key, version).__header_schema__.__flexible__)


def _served(api_key: int, version: int) -> support.Api:
    api = support.find(api_key)
    assert api is not None, f"not an API that is served: api_key={api_key}"
    assert api.serves(version), f"not a version that is served: api_key={api_key} version={version}"
    return api
