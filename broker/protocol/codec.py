"""Bytes of a frame to a request's values, a response's values to bytes: what the connection and the dispatcher call.

Values are kio's dataclasses, in the newest shape that fits (`request_class`, `response_class`), with plain integers: error codes
may be given as kio's `ErrorCode`, times are milliseconds although kio's annotations say timedelta (`milliseconds`, `as_field`).
Produce and Fetch have readers, writers and values of their own, in `produce` and `fetch`.

Handlers should see one class per API, its newest. A request is carried by the newest version that has every field of the version asked for.
Where a later version has dropped one (FindCoordinator v0-v3 has `key`, v4 a list of them), the older versions have a shape of their own.
A response may be built as the newest version all the same when each field that is missing there has a default in the schema.

`first_error_of` finds the first error code of an answer, and `let_go_in_steps` ends a large message some of it at a time.

Only `ProtocolViolation` is raised for what a client sent. Values that a version cannot express are an AssertionError.
"""

import dataclasses
import datetime
import operator
import struct
import typing
from collections.abc import Callable, Generator, Iterator
from functools import cache
from itertools import islice
from typing import Final, NamedTuple, cast

from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import i32Timedelta
from kio.static.protocol import Entity

from broker.protocol import apis, fetch, produce, wire
from broker.protocol.apis import Api
from broker.protocol.compiler import (
    Field,
    StepwiseDecoder,
    StepwiseEncoder,
    Structure,
    at_once,
    compile_stepwise_decoder,
    compile_stepwise_encoder,
    describe,
    to_milliseconds,
)
from broker.protocol.wire import ProtocolViolation
from storage.vocabulary import Buffer

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
_FLEXIBLE_MINIMUM: Final = {PRODUCE: produce.FLEXIBLE_MINIMUM, FETCH: fetch.FLEXIBLE_MINIMUM}

_HEADER_V1: Final = struct.Struct(">hhih")
_CORRELATION_ID: Final = struct.Struct(">i")
RELEASED_PER_STEP: Final = 500
"""Elements that are released between two steps: a quarter of a millisecond."""
SHORT: Final = 100
"""Elements of a sequence that ends at once."""
SEARCHED_PER_STEP: Final = 1_000
"""Parts of an answer between two steps: half a millisecond."""

_Search = Callable[[typing.Any], int]
_Codes = Callable[[typing.Any], Iterator[int]]


def request_structure(api_key: int, version: int) -> Structure:
    """One version of a request as the wire has it."""
    return describe(load_request_schema(api_key, version))


def response_structure(api_key: int, version: int) -> Structure:
    """One version of a response as the wire has it."""
    return describe(load_response_schema(api_key, version))


def request_shape(api: Api, version: int) -> Structure:
    """What `version` of the request is decoded into."""
    message = request_structure(api.key, version)
    for newer in range(api.maximum, version, -1):
        values = request_structure(api.key, newer)
        if covers(values, message):
            return values
    return message


def response_shape(api: Api, version: int) -> Structure:
    """What a handler builds to answer `version` of the request."""
    message = response_structure(api.key, version)
    for newer in range(api.maximum, version, -1):
        values = response_structure(api.key, newer)
        if covers(values, message, defaults_suffice=True):
            return values
    return message


def covers(values: Structure, message: Structure, *, defaults_suffice: bool = False) -> bool:
    """Whether `values` has a place for every field of `message`, in nested structures too."""
    return all(
        (defaults_suffice and field.has_default) if target is None else _holds(target, field, defaults_suffice=defaults_suffice)
        for field, target in ((field, values.find(field.name)) for field in message.fields)
    )


def _holds(target: Field, field: Field, *, defaults_suffice: bool) -> bool:
    if target.array != field.array or target.family != field.family or (field.nullable and not target.nullable):
        return False
    if isinstance(field.kafka_type, Structure):
        assert isinstance(target.kafka_type, Structure)
        return covers(target.kafka_type, field.kafka_type, defaults_suffice=defaults_suffice)
    return True


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
        if apis.is_served(api_key, version) and _has_flexible_request(api_key, version):
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
    return request_shape(_served(api_key, version), version).cls


def response_class(api_key: int, version: int) -> type:
    """What a handler builds to answer this version: the newest class whose missing fields all have defaults."""
    if api_key == PRODUCE:
        return produce.ProduceResponse
    if api_key == FETCH:
        return fetch.FetchResponse
    return response_shape(_served(api_key, version), version).cls


def compile_in_steps(api_key: int, version: int) -> Iterator[None]:
    """Compile what a version needs that is not Produce's or Fetch's; iterated over to its end, it yields wherever a pause is in place.

    What is not compiled so is compiled when it is first used, all at once.
    """
    api = _served(api_key, version)
    # Kio's dataclasses are most of it: a few milliseconds for the request or the response of one version, imported with its first use.
    for structure, shape in ((request_structure, request_shape), (response_structure, response_shape)):
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
    return compile_stepwise_decoder(request_structure(api_key, version), request_shape(api, version))


@cache
def _encoder(api_key: int, version: int, values: type[Entity]) -> StepwiseEncoder:
    assert getattr(values, "__api_key__", None) == api_key, f"values of another API: api_key={api_key} values={values!r}"
    return compile_stepwise_encoder(response_structure(api_key, version), describe(values))


@cache
def _has_flexible_request(api_key: int, version: int) -> bool:
    if api_key in _FLEXIBLE_MINIMUM:
        return version >= _FLEXIBLE_MINIMUM[api_key]
    return bool(load_request_schema(api_key, version).__header_schema__.__flexible__)


@cache
def _has_flexible_response_header(api_key: int, version: int) -> bool:
    return bool(load_response_schema(api_key, version).__header_schema__.__flexible__)


def _served(api_key: int, version: int) -> Api:
    api = apis.find(api_key)
    assert api is not None, f"not an API that is served: api_key={api_key}"
    assert api.serves(version), f"not a version that is served: api_key={api_key} version={version}"
    return api


def let_go_in_steps(held: list[object]) -> Generator[None, None, None]:
    """Empty the list of messages, which nobody else holds. Iterated over to its end, it yields wherever a pause is in place."""
    left = RELEASED_PER_STEP
    while held:
        one = held.pop()
        if isinstance(one, tuple | list):
            if len(one) > SHORT:
                held += one
            left -= min(len(one), SHORT)
        else:
            cls: type = type(one)
            held += [getattr(one, name) for name in _arrays_of(cls)]
        del one
        left -= 1
        if left <= 0:
            left = RELEASED_PER_STEP
            yield


@cache
def _arrays_of(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass that are arrays, or may be."""
    if not dataclasses.is_dataclass(cls):
        return ()
    return tuple(field.name for field in dataclasses.fields(cls) if _is_array(field.type))


def _is_array(annotation: object) -> bool:
    return any(typing.get_origin(member) is tuple for member in (annotation, *typing.get_args(annotation)))


def first_error_of(answer: object) -> int:
    """Its own, or that of its first topic, resource, group … that has one; 0 if there is none. `answer` is a dataclass."""
    cls: type = type(answer)
    return int(_search(cls)(answer))


def first_error_in_steps(answer: object) -> Generator[None, None, int]:
    """As `first_error_of`, which is faster: iterated over to its end, it yields wherever a pause is in place."""
    cls: type = type(answer)
    codes = _codes(cls)(answer)
    while part := tuple(islice(codes, SEARCHED_PER_STEP)):
        if error := next(filter(None, part), 0):
            return int(error)
        yield
    return 0


@cache
def _search(cls: type) -> _Search:
    """0 where `cls` and what it is made of has no error code."""
    fields = typing.cast("tuple[dataclasses.Field[object], ...]", dataclasses.fields(cls))
    has_own = any(field.name == "error_code" for field in fields)
    arrays = [(field.name, _search(element)) for field in fields if (element := _element(field.type)) is not None and _holds_one(element)]
    own: _Search = operator.attrgetter("error_code") if has_own else _no_code
    if not arrays:
        return own

    def search(value: object) -> int:
        if error := own(value):
            return error
        for name, search_element in arrays:
            for element in getattr(value, name) or ():
                if error := search_element(element):
                    return error
        return 0

    return search


@cache
def _codes(cls: type) -> _Codes:
    """The codes of a value and of its parts, in their order; 0 for what has none of its own."""
    fields = typing.cast("tuple[dataclasses.Field[object], ...]", dataclasses.fields(cls))
    arrays = [(field.name, _codes(element)) for field in fields if (element := _element(field.type)) is not None and _holds_one(element)]
    own: _Search = operator.attrgetter("error_code") if any(field.name == "error_code" for field in fields) else _no_code

    def codes(value: object) -> Iterator[int]:
        yield own(value)
        for name, codes_of in arrays:
            for element in getattr(value, name) or ():
                yield from codes_of(element)

    return codes


@cache
def _holds_one(cls: type) -> bool:
    fields = dataclasses.fields(cls)
    return any(field.name == "error_code" for field in fields) or any(
        _holds_one(element) for field in fields if (element := _element(field.type)) is not None
    )


def _element(annotation: object) -> type | None:
    """The dataclass that an array, which may be null, is made of."""
    for member in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(member) is tuple:
            element = typing.get_args(member)[0]
            return element if isinstance(element, type) and dataclasses.is_dataclass(element) else None
    return None


def _no_code(_: object) -> int:
    return 0
