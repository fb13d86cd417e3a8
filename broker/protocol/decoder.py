"""Decoders compiled from the schema: one flat function per version of a message, from hostile bytes to kio's dataclasses.

What holds of every decoder made here:
  - a length is compared with the bytes that remain, an array's with its elements' least size, before anything is allocated;
  - a message has at most `ELEMENTS_MAX` array elements and tagged fields, so neither time nor memory runs away;
  - a string has at most 32,767 bytes, also where its length could say more;
  - unknown tagged fields are skipped (KIP-482), a known one must fill exactly the size it declares;
  - bytes after the message are ignored, as Kafka does.
Broken input raises `ProtocolViolation` or one of `wire.MALFORMED`; `codec` makes one of the two.

A decoder stops after every STEP_ELEMENTS elements, so that whoever drives it can let others have their turn while it reads a long request.
"""

import struct
import uuid
from collections.abc import Callable, Generator
from typing import Final, cast

from broker.protocol import wire
from broker.protocol.generated import Source
from broker.protocol.schema import FIXED_FORMATS, Field, Structure

Decoder = Callable[[bytes], object]
StepwiseDecoder = Callable[[bytes], Generator[None, None, object]]
"""Returns the message when it has been iterated over; a step is over wherever it yields."""

STEP_ELEMENTS: Final = 500
"""Elements of arrays between two steps, numbers not counted: half a millisecond."""

_UUID_ZERO: Final = bytes(16)


def compile_decoder(message: Structure, values: Structure) -> Decoder:
    """As `compile_stepwise_decoder`, all in one step."""
    decode = compile_stepwise_decoder(message, values)
    return lambda data: at_once(decode(data))


def at_once(steps: Generator[None, None, object]) -> object:
    """What they return, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def compile_stepwise_decoder(message: Structure, values: Structure) -> StepwiseDecoder:
    """A decoder of `message` that answers with `values`, field by name; what the message lacks takes its default.

    `values` may be the message's own description or one that `covers` it (`shapes`).
    """
    source = Source("data")
    source.bind(
        read_uvarint=wire.read_uvarint,
        skip_tags=wire.skip_tags,
        refuse_length=wire.refuse_length,
        refuse_string=wire.refuse_string,
        refuse_count=wire.refuse_count,
        refuse_tag=wire.refuse_tag,
        unpack_from=struct.unpack_from,
        unpack_int16=struct.Struct(">h").unpack_from,
        unpack_int32=struct.Struct(">i").unpack_from,
        to_uuid=to_uuid,
    )
    source.line("at = 0")
    source.line("end = len(data)")
    source.line(f"left = {STEP_ELEMENTS}")
    source.line(f"budget = {wire.ELEMENTS_MAX}")
    result = _Reader(source, flexible=message.flexible).structure(message, values)
    # A message without arrays yields nothing, and is a generator all the same.
    with source.block("if 0"):
        source.line("yield")
    source.line(f"return {result}")
    return cast("StepwiseDecoder", source.compile(f"decoder of {message.cls.__name__} {message.cls.__version__}"))


def to_uuid(raw: bytes) -> uuid.UUID | None:
    """Sixteen bytes; zeros are Kafka's "no id"."""
    return None if raw == _UUID_ZERO else uuid.UUID(bytes=raw)


def bytes_min(field: Field, *, flexible: bool) -> int:
    """The fewest bytes that one value of `field` (with `array`: one element) takes on the wire."""
    if isinstance(field.kafka_type, Structure):
        return structure_bytes_min(field.kafka_type)
    if field.kafka_type in FIXED_FORMATS:
        return struct.calcsize(">" + FIXED_FORMATS[field.kafka_type])
    return 1 if flexible else 2 if field.kafka_type == "string" else 4


def structure_bytes_min(structure: Structure) -> int:
    """The fewest bytes that `structure` takes on the wire."""
    length_bytes = 1 if structure.flexible else 4
    total = int(structure.flexible)
    for field in structure.fields:
        if field.tag is None:
            if field.array:
                total += length_bytes
            elif isinstance(field.kafka_type, Structure) and field.nullable:
                total += 1
            else:
                total += bytes_min(field, flexible=structure.flexible)
    return max(total, 1)


class _Reader:
    """Emits the statements that read a structure; each method returns the expression of what was read."""

    def __init__(self, source: Source, *, flexible: bool) -> None:
        self._source = source
        self._flexible = flexible

    def structure(self, message: Structure, values: Structure) -> str:
        """Read all fields of `message`, and its tags; the expression builds `values`."""
        read: dict[str, str] = {}
        run: list[Field] = []
        for field in message.fields:
            if field.tag is not None:
                continue
            if field.kafka_type in FIXED_FORMATS and not field.array:
                run.append(field)
                continue
            self._fixed_run(run, read)
            read[field.name] = self._field(field, values.find(field.name))
        self._fixed_run(run, read)
        if message.flexible:
            self._tags(message, values, read)
        arguments = (
            f"{field.name}={read[field.name] if field.name in read else self._source.constant(field.absent)}" for field in values.fields
        )
        return f"{self._source.constant(values.cls)}({', '.join(arguments)})"

    def _fixed_run(self, run: list[Field], read: dict[str, str]) -> None:
        """Neighbours of fixed size are unpacked at once. Empties `run`."""
        if not run:
            return
        layout = struct.Struct(">" + "".join(FIXED_FORMATS[str(field.kafka_type)] for field in run))
        names = [self._source.variable() for _ in run]
        self._source.line(f"{', '.join(names)}, = {self._source.constant(layout.unpack_from)}(data, at)")
        self._source.line(f"at += {layout.size}")
        for field, name in zip(run, names, strict=True):
            read[field.name] = f"to_uuid({name})" if field.kafka_type == "uuid" else name
        run.clear()

    def _field(self, field: Field, target: Field | None) -> str:
        """Read one field that is not in a run: an array, or a value of varying size. `target` says what to build of structures."""
        if field.array:
            return self._array(field, target)
        if isinstance(field.kafka_type, Structure):
            return self._inner_structure(field, target)
        if field.kafka_type in FIXED_FORMATS:
            read: dict[str, str] = {}
            self._fixed_run([field], read)
            return read[field.name]
        return self._varying(field)

    def _varying(self, field: Field, *, nullable: bool | None = None) -> str:
        """A string or bytes."""
        source, name = self._source, self._source.variable()
        length = self._length("unpack_int16", 2) if field.kafka_type == "string" else self._length("unpack_int32", 4)

        def take() -> None:
            self._check(field, length, 1)
            if field.kafka_type == "string" and self._flexible:
                with source.block(f"if {length} > {wire.STRING_BYTES_MAX}"):
                    source.line(f"refuse_string({field.name!r}, {length})")
            source.line(f"stop = at + {length}")
            source.line(f"{name} = data[at:stop].decode()" if field.kafka_type == "string" else f"{name} = data[at:stop]")
            source.line("at = stop")

        self._unless_null(name, length, take, nullable=field.nullable if nullable is None else nullable)
        return name

    def _array(self, field: Field, target: Field | None) -> str:
        source, name = self._source, self._source.variable()
        length = self._length("unpack_int32", 4)

        def take() -> None:
            element_bytes_min = bytes_min(field, flexible=self._flexible)
            self._check(field, length, element_bytes_min)
            source.line(f"budget -= {length}")
            with source.block("if budget < 0"):
                source.line("refuse_count()")
            if field.kafka_type in FIXED_FORMATS and field.kafka_type != "uuid":
                code = FIXED_FORMATS[str(field.kafka_type)]
                source.line(f"{name} = unpack_from('>%d{code}' % {length}, data, at)")
                source.line(f"at += {element_bytes_min} * {length}")
                return
            elements = source.variable()
            source.line(f"{elements} = []")
            with source.block(f"for _ in range({length})"):
                source.line(f"{elements}.append({self._element(field, target)})")
                source.line("left -= 1")
                with source.block("if not left"):
                    source.line(f"left = {STEP_ELEMENTS}")
                    source.line("yield")
            source.line(f"{name} = tuple({elements})")

        self._unless_null(name, length, take, nullable=field.nullable)
        return name

    def _element(self, field: Field, target: Field | None) -> str:
        if isinstance(field.kafka_type, Structure):
            return self.structure(field.kafka_type, _structure_of(target) or field.kafka_type)
        if field.kafka_type == "uuid":
            read: dict[str, str] = {}
            self._fixed_run([field], read)
            return read[field.name]
        return self._varying(field, nullable=False)

    def _inner_structure(self, field: Field, target: Field | None) -> str:
        assert isinstance(field.kafka_type, Structure)
        inner = _structure_of(target) or field.kafka_type
        if not field.nullable or field.tag is not None:
            return self.structure(field.kafka_type, inner)
        source, name = self._source, self._source.variable()
        # A nullable structure is led by a byte: negative is null (KIP-893).
        source.line("marker = data[at]")
        source.line("at += 1")
        source.line(f"{name} = None")
        with source.block("if marker < 128"):
            source.line(f"{name} = {self.structure(field.kafka_type, inner)}")
        return name

    def _tags(self, message: Structure, values: Structure, read: dict[str, str]) -> None:
        """The tagged fields at the end of a flexible structure."""
        source = self._source
        known = [field for field in message.fields if field.tag is not None]
        for field in known:
            read[field.name] = source.variable()
            target = values.find(field.name) or field
            source.line(f"{read[field.name]} = {source.constant(target.absent)}")
        with source.block("if not data[at]"):
            source.line("at += 1")
        with source.block("else"):
            if not known:
                source.line("at, budget = skip_tags(data, at, budget)")
                return
            count, tag, size, start = (source.variable() for _ in range(4))
            source.line(f"{count}, at = read_uvarint(data, at)")
            source.line(f"budget -= {count}")
            with source.block(f"if budget < 0 or {count} > {wire.TAGS_MAX}"):
                source.line("refuse_count()")
            with source.block(f"for _ in range({count})"):
                source.line(f"{tag}, at = read_uvarint(data, at)")
                source.line(f"{size}, at = read_uvarint(data, at)")
                with source.block(f"if {size} > end - at"):
                    source.line(f"refuse_length('tagged field', {size}, end - at)")
                source.line(f"{start} = at")
                for position, field in enumerate(known):
                    with source.block(f"{'elif' if position else 'if'} {tag} == {field.tag}"):
                        source.line(f"{read[field.name]} = {self._field(field, values.find(field.name))}")
                        with source.block(f"if at != {start} + {size}"):
                            source.line(f"refuse_tag({tag}, {size}, at - {start})")
                source.line(f"at = {start} + {size}")

    def _length(self, unpack: str, size: int) -> str:
        """Read a length into a variable: -1 is null. `unpack` and `size` are what versions before KIP-482 use."""
        source, length = self._source, self._source.variable()
        if self._flexible:
            source.line(f"{length} = data[at] - 1")
            with source.block(f"if {length} < 127"):
                source.line("at += 1")
            with source.block("else"):
                source.line(f"{length}, at = read_uvarint(data, at)")
                source.line(f"{length} -= 1")
        else:
            source.line(f"{length}, = {unpack}(data, at)")
            source.line(f"at += {size}")
        return length

    def _check(self, field: Field, length: str, unit_bytes: int) -> None:
        """Refuse a length whose units cannot be in the bytes that remain, and a negative one."""
        room = "end - at" if unit_bytes == 1 else f"(end - at) // {unit_bytes}"
        with self._source.block(f"if not 0 <= {length} <= {room}"):
            self._source.line(f"refuse_length({field.name!r}, {length}, end - at)")

    def _unless_null(self, name: str, length: str, take: Callable[[], None], *, nullable: bool) -> None:
        if not nullable:
            take()
            return
        with self._source.block(f"if {length} == -1"):
            self._source.line(f"{name} = None")
        with self._source.block("else"):
            take()


def _structure_of(field: Field | None) -> Structure | None:
    return field.kafka_type if field is not None and isinstance(field.kafka_type, Structure) else None
