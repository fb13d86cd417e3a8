"""Requests of any version from plain dicts, and answers as plain dicts: what probes are written in.

Field names are kio's (`session_timeout`, not `session_timeout_ms`), times are milliseconds. A field left out has the default of the
schema, else the zero of its type. A field that the version does not have is left out, if another version of the API has it; else it is a
mistake of the probe.
"""

import dataclasses
import struct
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema

from broker.protocol.compiler import Decoder, Encoder, Field, Structure, compile_decoder, compile_encoder, describe

CLIENT_ID: Final = "probe"
_VERSIONS_MAX: Final = 30


def frame(api_key: int, version: int, fields: Mapping[str, Any], *, correlation_id: int, client_id: str = CLIENT_ID) -> bytes:
    """The request without the length before it."""
    schema = load_request_schema(api_key, version)
    structure = describe(schema)
    _refuse_unknown(api_key, fields)
    header = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id.encode()
    out = bytearray(header + (b"\x00" if schema.__header_schema__.__flexible__ else b""))
    _encoder(api_key, version)(_value(structure, fields), out)
    return bytes(out)


def plain(api_key: int, version: int, answer: bytes) -> dict[str, Any]:
    """The answer's fields; `answer` begins with the correlation id."""
    schema = load_response_schema(api_key, version)
    flexible = schema.__header_schema__.__flexible__
    read: dict[str, Any] = _plain(_decoder(api_key, version)(answer[5 if flexible else 4 :]))
    return read


@cache
def _encoder(api_key: int, version: int) -> Encoder:
    structure = describe(load_request_schema(api_key, version))
    return compile_encoder(structure, structure)


@cache
def _decoder(api_key: int, version: int) -> Decoder:
    structure = describe(load_response_schema(api_key, version))
    return compile_decoder(structure, structure)


def _value(structure: Structure, fields: Mapping[str, Any]) -> Any:
    return structure.cls(
        **{field.name: _field(field, fields[field.name]) if field.name in fields else field.absent for field in structure.fields}
    )


def _field(field: Field, value: Any) -> Any:
    if not isinstance(field.kafka_type, Structure) or value is None:
        return tuple(value) if field.array and value is not None else value
    if field.array:
        return tuple(_value(field.kafka_type, one) for one in value)
    return _value(field.kafka_type, value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value


def _refuse_unknown(api_key: int, fields: Mapping[str, Any]) -> None:
    unknown = _paths(fields) - _known(api_key)
    assert not unknown, f"no version of API {api_key} has {', '.join(sorted(unknown))}"


def _paths(fields: Mapping[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in fields.items():
        found.add(prefix + name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Mapping):
                found |= _paths(one, f"{prefix}{name}.")
    return found


@cache
def _known(api_key: int) -> frozenset[str]:
    found: set[str] = set()
    for version in range(_VERSIONS_MAX):
        try:
            schema = load_request_schema(api_key, version)
        except Exception as error:  # noqa: BLE001 - kio has one error for each way not to know a version
            assert "ersion" in repr(error) or "chema" in repr(error), error  # noqa: PT017
            continue
        found |= _names(describe(schema))
    return frozenset(found)


def _names(structure: Structure, prefix: str = "") -> set[str]:
    found = set()
    for field in structure.fields:
        found.add(prefix + field.name)
        if isinstance(field.kafka_type, Structure):
            found |= _names(field.kafka_type, f"{prefix}{field.name}.")
    return found
