"""Values that are Protobuf: columns from a descriptor set, and a row from each value, with Google's own library in Python's workers.

    int32, sint32, sfixed32   INT              string      STRING          repeated    ARRAY
    int64, sint64, sfixed64   BIGINT           bytes       BINARY          map         MAP
    uint32, fixed32           BIGINT           bool        BOOLEAN         a message   STRUCT
    uint64, fixed64           DECIMAL(20,0)    float       FLOAT           google.protobuf.Timestamp   TIMESTAMP, in microseconds
    enum                      STRING           double      DOUBLE

An enum's value is its name, or its number where the schema has no name for it. A field that knows whether it was set (in a oneof, optional,
a message) is null where it was not; any other has its default value then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark.vocabulary import UnknownFields

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS: Final = 10**9
_DEPTH_MAX: Final = 100
_MAKE: Final = "make one with `protoc --include_imports --descriptor_set_out=FILE`"
_TYPES: Final[dict[int, DataType]] = {
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
}

Converted = tuple[tuple[Any, ...] | None, str | None]
"""A row, or the reason why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufSchema:
    """`descriptors`: a set of them as protoc writes it. `message`: its full name."""

    descriptors: bytes
    message: str


class _Unfit(Exception):
    """`str()` is the reason why a value is none of the table's rows."""


def protobuf_columns(schema: ProtobufSchema) -> StructType:
    """Raise `ValueError` if there is no such message, or none that a table can hold."""
    return _struct(_described(schema), ())


def row_reader(schema: ProtobufSchema, *, has_indexes: bool, unknown_fields: UnknownFields) -> Callable[[bytes | None], Converted]:
    """For a UDF: it can be pickled, and reads the schema once in each worker.

    `has_indexes`: before the message, a registry's serializer has written which message of the schema it is.
    """

    def read(value: bytes | None) -> Converted:
        if value is None:
            return None, None
        try:
            return _reader(schema, has_indexes, unknown_fields)(bytes(value)), None
        except _Unfit as reason:
            return None, str(reason)

    return read


@lru_cache(maxsize=16)
def _reader(schema: ProtobufSchema, has_indexes: bool, unknown_fields: UnknownFields) -> Callable[[bytes], tuple[Any, ...]]:
    described = _described(schema)
    kind = GetMessageClass(described)
    row = _row(described)

    def read(value: bytes) -> tuple[Any, ...]:
        body = _of_message(value, described) if has_indexes else value
        try:
            message = kind.FromString(body)
        except DecodeError as error:
            raise _Unfit("the value is not Protobuf of this message") from error
        if missing := cast("Any", message).FindInitializationErrors():
            raise _Unfit(f"{missing[0]} is missing")
        if unknown_fields != "ignore" and (unknown := sorted(set(_unknown(message, "")))):
            raise _Unfit(f"the schema does not have {', '.join(unknown)}")
        return row(message)

    return read


def _described(schema: ProtobufSchema) -> Descriptor:
    try:
        files = FileDescriptorSet.FromString(schema.descriptors).file
    except DecodeError as error:
        raise ValueError(f"it is no set of descriptors: {_MAKE}") from error
    pool = DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise ValueError(f"{file.name} needs a file that is not in it: {_MAKE} ({error})") from error
    try:
        return pool.FindMessageTypeByName(schema.message)
    except KeyError as error:
        names = [f"{file.package}.{one.name}".lstrip(".") for file in files for one in file.message_type]
        raise ValueError(f"it has no message {schema.message}, but {', '.join(names) or 'none'}") from error


def _struct(message: Descriptor, within: tuple[str, ...]) -> StructType:
    if message.full_name in within:
        raise ValueError(f"the message {message.full_name} contains itself, and no column can")
    if not message.fields:
        raise ValueError(f"the message {message.full_name} has no fields, and a table has no type for that")
    names = [field.name.lower() for field in message.fields]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the message {message.full_name} has two fields {doubled[0]}: for Spark, small letters and capitals are the same")
    return StructType([StructField(field.name, _column(field, (*within, message.full_name))) for field in message.fields])


def _column(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    if entry := _entry(field):
        return MapType(_value_type(entry[0], within), _value_type(entry[1], within))
    one = _value_type(field, within)
    return ArrayType(one) if field.is_repeated else one


def _value_type(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    if field.message_type is None:
        return _TYPES[field.type]
    return TimestampType() if field.message_type.full_name == _TIMESTAMP else _struct(field.message_type, within)


def _entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """Of a map, what its keys and its values are."""
    kind = field.message_type
    if kind is None or not kind.GetOptions().map_entry:
        return None
    return kind.fields_by_name["key"], kind.fields_by_name["value"]


def _row(message: Descriptor) -> Callable[[Message], tuple[Any, ...]]:
    readers = [_field(field) for field in message.fields]
    return lambda read: tuple([one(read) for one in readers])


def _field(field: FieldDescriptor) -> Callable[[Message], Any]:
    name = field.name
    if entry := _entry(field):
        key, value = map(_converter, entry)
        return lambda message: {key(one): value(other) for one, other in getattr(message, name).items()}
    convert = _converter(field)
    if field.is_repeated:
        return lambda message: [convert(one) for one in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name != _TIMESTAMP:
            return _row(field.message_type)
        return lambda value: _time(value.seconds, value.nanos, field.name)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    if field.type == FieldDescriptor.TYPE_STRING:
        return lambda value: _text(value, field.name)
    return Decimal if isinstance(_TYPES[field.type], DecimalType) else _same


def _same(value: Any) -> Any:
    return value


def _text(value: str | bytes, name: str) -> str:
    # proto2 allows any bytes, which Google's library then hands out as they are.
    if isinstance(value, str):
        return value
    raise _Unfit(f"{name} is not UTF-8")


def _time(seconds: int, nanos: int, name: str) -> datetime:
    try:
        if 0 <= nanos < _NANOS:
            return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1_000)
    except OverflowError as error:
        raise _Unfit(f"{name} is no time between the years 1 and 9999") from error
    raise _Unfit(f"{name} has {nanos} nanoseconds, of a second")


def _unknown(message: Message, path: str) -> Iterator[str]:
    """What was written by a newer schema: fields, values of an enum, extensions."""
    known = message.DESCRIPTOR.fields_by_number
    unknown = UnknownFieldSet(message)
    for at in range(len(unknown)):
        number = unknown[at].field_number
        yield f"a value of {path}{known[number].name}" if number in known else f"field {path}{number}"
    for field, value in message.ListFields():
        if field.is_extension:
            yield f"the extension {path}{field.full_name}"
        elif field.message_type is not None:
            inner = f"{path}{field.name}."
            if entry := _entry(field):
                parts = value.values() if entry[1].message_type is not None else ()
            else:
                parts = value if field.is_repeated else (value,)
            for part in parts:
                yield from _unknown(part, inner)


def _of_message(value: bytes, wanted: Descriptor) -> bytes:
    """What follows the indexes. Confluent's serializer writes how many there are, and where to go in the schema: 1, 0 is the first message
    in the second one. A zero alone is short for the first message."""
    count, at = _varint(value, 0)
    if not 0 <= count <= _DEPTH_MAX:
        raise _Unfit("the value does not say which message of its schema it is")
    indexes = []
    for _ in range(count):
        index, at = _varint(value, at)
        indexes.append(index)
    if (indexes or [0]) != _indexes(wanted):
        raise _Unfit(f"the value is message {indexes or [0]} of its schema, and {wanted.full_name} is {_indexes(wanted)}")
    return value[at:]


def _varint(value: bytes, start: int) -> tuple[int, int]:
    """A number, zigzag, and where it ends."""
    number = 0
    for at in range(start, min(start + 5, len(value))):
        number |= (value[at] & 0x7F) << 7 * (at - start)
        if value[at] < 0x80:
            return number >> 1 ^ -(number & 1), at + 1
    raise _Unfit("the value does not say which message of its schema it is")


@lru_cache(maxsize=16)
def _indexes(message: Descriptor) -> list[int]:
    outer = message.containing_type
    if outer is None:
        return [list(message.file.message_types_by_name.values()).index(message)]
    return [*_indexes(outer), outer.nested_types.index(message)]
