"""Random instances of kio's dataclasses, from a seed, and kio's own encoder as the oracle of the codecs' tests."""

import dataclasses
import datetime
import io
import random
import types
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.protocol import Entity

from broker.protocol.compiler import Field, Structure, describe, to_milliseconds

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "timedelta_i32": 32}
_TEXTS = ("", "a", "topic-α", "名前", "x" * 126, "x" * 127, "y" * 128, "z" * 300)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_encoded(entity: object) -> bytes:
    """What kio writes."""
    with io.BytesIO() as buffer:
        entity_writer(cast("type[Entity]", type(entity)))(buffer, cast("Entity", entity))
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Pool:
    """Values that mean something to the broker that is asked; nine of ten are taken from here, where there is one of the kind."""

    texts: Sequence[str] = ()
    numbers: Sequence[int] = ()
    milliseconds: Sequence[int] = ()
    blobs: Sequence[bytes] = ()
    uuids: Sequence[uuid.UUID] = ()

    def take(self, kafka_type: object, chance: random.Random) -> object:
        """One that fits the type, or None."""
        values: Sequence[object] = ()
        if kafka_type == "string":
            values = self.texts
        elif kafka_type in ("bytes", "records"):
            values = self.blobs
        elif kafka_type == "uuid":
            values = self.uuids
        elif kafka_type in ("timedelta_i32", "timedelta_i64"):
            values = [datetime.timedelta(milliseconds=number) for number in self.milliseconds]
        elif isinstance(kafka_type, str) and kafka_type in _BITS:
            low = 0 if kafka_type.startswith("u") else -1
            values = [number for number in self.numbers if low <= number < 2 ** (_BITS[kafka_type] - 1)]
        return chance.choice(values) if values and chance.random() < 0.9 else None


NOTHING = Pool()


def random_entity(structure: Structure, chance: random.Random, pool: Pool = NOTHING) -> object:
    """An instance that kio's encoder accepts: times are timedelta and datetime."""
    return structure.cls(**{field.name: _random_field(field, chance, pool) for field in structure.fields})


def in_milliseconds(entity: object) -> object:
    """The same instance with integers for times: what our codecs hand out and take."""
    structure = describe(cast("type[Entity]", type(entity)))
    return projected(entity, structure)


def projected(entity: object, target: Structure) -> object:
    """`entity` as another version, field by name; what it lacks takes the default there."""
    source = describe(cast("type[Entity]", type(entity)))
    names = {field.name for field in source.fields}
    return target.cls(
        **{
            field.name: _projected_value(getattr(entity, field.name), field) if field.name in names else field.absent
            for field in target.fields
        }
    )


def with_kio_times(entity: object, structure: Structure) -> object:
    """`in_milliseconds` undone, for kio's encoder."""
    return structure.cls(**{field.name: _kio_value(getattr(entity, field.name), field) for field in structure.fields})


def with_unknown_tag(structure: Structure, *, tag: int) -> Structure:
    """The message as a later version might have it: one more tagged field in every structure."""
    fields = tuple(
        dataclasses.replace(field, kafka_type=with_unknown_tag(field.kafka_type, tag=tag))
        if isinstance(field.kafka_type, Structure)
        else field
        for field in structure.fields
    )
    unknown = Field(name="unknown", kafka_type="string", array=False, nullable=False, tag=tag, default="")
    return dataclasses.replace(structure, fields=(*fields, unknown))


def as_namespace(value: object, *, unknown: str) -> object:
    """The same attributes on plain objects, and an attribute `unknown` on each."""
    if isinstance(value, tuple):
        return tuple(as_namespace(element, unknown=unknown) for element in value)
    if not dataclasses.is_dataclass(value):
        return value
    attributes = {field.name: as_namespace(getattr(value, field.name), unknown=unknown) for field in dataclasses.fields(value)}
    return types.SimpleNamespace(**attributes, unknown=unknown)


def _random_field(field: Field, chance: random.Random, pool: Pool) -> object:
    if field.nullable and chance.random() < 0.25 and (field.tag is None or field.default is None):
        return None
    if field.array:
        length = 130 if chance.random() < 0.03 and not isinstance(field.kafka_type, Structure) else chance.randrange(4)
        return tuple(_random_value(field, chance, pool) for _ in range(length))
    if field.tag is not None and chance.random() < 0.5:
        return _kio_value(field.absent, field)
    return _random_value(field, chance, pool)


def _random_value(field: Field, chance: random.Random, pool: Pool) -> object:
    if (known := pool.take(field.kafka_type, chance)) is not None:
        return known
    match field.kafka_type:
        case Structure() as structure:
            return random_entity(structure, chance, pool)
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.random()
        case "string":
            return chance.choice(_TEXTS)
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 126, 127, 128, 1_000)))
        case "uuid":
            return None if chance.random() < 0.25 else uuid.UUID(bytes=chance.randbytes(16))
        case "error_code":
            return chance.choice(tuple(ErrorCode))
        case "timedelta_i64":
            return datetime.timedelta(milliseconds=chance.randrange(2**44))
        case "datetime_i64":
            return _EPOCH + datetime.timedelta(milliseconds=chance.randrange(2**42))
        case kafka_type:
            bits = _BITS[kafka_type]
            low, high = (0, 2**bits - 1) if kafka_type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            number = chance.choice((low, high, 0, chance.randint(low, high)))
            return datetime.timedelta(milliseconds=number) if kafka_type == "timedelta_i32" else number


def _projected_value(value: object, target: Field) -> object:
    if isinstance(value, tuple):
        return tuple(_projected_value(element, target) for element in value)
    if isinstance(target.kafka_type, Structure):
        return None if value is None else projected(value, target.kafka_type)
    if isinstance(value, datetime.timedelta | datetime.datetime):
        return to_milliseconds(value)
    return value


def _kio_value(value: object, field: Field) -> object:
    if isinstance(value, tuple):
        return tuple(_kio_value(element, field) for element in value)
    if value is None:
        return None
    if isinstance(field.kafka_type, Structure):
        return with_kio_times(value, field.kafka_type)
    if field.kafka_type == "datetime_i64":
        return _EPOCH + datetime.timedelta(milliseconds=cast("int", value))
    if field.kafka_type in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=cast("int", value))
    return ErrorCode(cast("int", value)) if field.kafka_type == "error_code" else value
