"""Which dataclass carries which version: handlers should see one class per API, its newest.

A request is carried by the newest version that has every field of the version asked for. Where a later version has dropped
one (FindCoordinator v0-v3 has `key`, v4 a list of them), the older versions have a shape of their own.
A response may be built as the newest version all the same when each field that is missing there has a default in the schema.
"""

from kio.index import load_request_schema, load_response_schema

from broker.protocol.schema import Field, Structure, describe
from broker.protocol.support import Api


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
