"""kio's generated dataclasses as a description of fields: what the decoder and the encoder are compiled from.

kio says `timedelta` and `datetime` where the wire has milliseconds. Here, and in all values this layer hands out, they are
plain integers in milliseconds: a timedelta cannot hold every int64, and building one costs more than reading the field.
"""

import dataclasses
import datetime
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

from kio.static.protocol import Entity

FIXED_FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "uuid": "16s",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""`struct` formats of the kafka types (kio's words) whose size is fixed."""

TIME_TYPES: Final = frozenset({"timedelta_i32", "timedelta_i64", "datetime_i64"})

_FAMILIES: Final = {"bool": "bool", "float64": "float", "uuid": "uuid", "string": "string", "bytes": "bytes", "records": "bytes"}
_ZEROS: Final = {"bool": False, "float": 0.0, "uuid": None, "string": "", "bytes": b"", "integer": 0}
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_UNIX_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a structure. `kafka_type` is kio's word for it, or the nested structure; with `array`, that of an element."""

    name: str
    kafka_type: "str | Structure"
    array: bool
    nullable: bool
    tag: int | None
    default: object

    @property
    def family(self) -> str:
        """Types of one family share their Python values, so a field may widen from version to version."""
        if isinstance(self.kafka_type, Structure):
            return "structure"
        return _FAMILIES.get(self.kafka_type, "integer")

    @property
    def has_default(self) -> bool:
        """Whether the schema names a default; else absence means the type's zero."""
        return self.default is not dataclasses.MISSING

    @property
    def absent(self) -> object:
        """The value of this field where a version of the message does not have it."""
        if self.has_default:
            return self.default
        if self.array:
            return None if self.nullable else ()
        if self.nullable:
            return None
        if isinstance(self.kafka_type, Structure):
            return self.kafka_type.cls(**{field.name: field.absent for field in self.kafka_type.fields})
        return _ZEROS[self.family]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A message, or a structure inside one; `cls` is kio's dataclass for it."""

    cls: type[Entity]
    flexible: bool
    fields: tuple[Field, ...]

    def find(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


@cache
def describe(cls: type[Entity]) -> Structure:
    """The description of one of kio's dataclasses."""
    return Structure(cls=cls, flexible=cls.__flexible__, fields=tuple(_describe_field(field) for field in dataclasses.fields(cls)))


def to_milliseconds(value: datetime.timedelta | datetime.datetime | int | None) -> int:
    """A time field's value as the wire has it. None is Kafka's -1: no time."""
    match value:
        case None:
            return -1
        case int():
            return value
        case datetime.datetime():
            return (value - _UNIX_EPOCH) // _MILLISECOND
        case datetime.timedelta():
            return value // _MILLISECOND


def _describe_field(field: dataclasses.Field[object]) -> Field:
    annotation, nullable = _without_none(field.type)
    array = typing.get_origin(annotation) is tuple
    if array:
        annotation, _ = _without_none(typing.get_args(annotation)[0])
    structured = dataclasses.is_dataclass(annotation)
    kafka_type = describe(cast("type[Entity]", annotation)) if structured else str(field.metadata["kafka_type"])
    default = field.default
    if kafka_type in TIME_TYPES and default is not dataclasses.MISSING:
        assert default is None or isinstance(default, datetime.timedelta | datetime.datetime)
        default = to_milliseconds(default)
    tag = field.metadata.get("tag")
    assert tag is None or isinstance(tag, int)
    return Field(
        name=field.name,
        kafka_type=kafka_type,
        array=array,
        # A UUID of zeros is kio's None: nothing on the wire says null.
        nullable=nullable and (array or kafka_type not in ("uuid", *TIME_TYPES)),
        tag=tag,
        default=default,
    )


def _without_none(annotation: object) -> tuple[object, bool]:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
    assert len(members) == 1, f"union of more than a type and None: {annotation}"
    return members[0], True
