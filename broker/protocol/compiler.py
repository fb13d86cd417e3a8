"""Decoders and encoders compiled from the schema: one flat function per version of a message.

`describe` turns kio's dataclasses into descriptions of fields. `Source` is Python source that is written line by line and compiled.
Constants (classes, packers, defaults) are bound by name, so a traceback shows a file name of its own.

What holds of every decoder made here, which reads hostile bytes:
  - a length is compared with the bytes that remain, an array's with its elements' least size, before anything is allocated;
  - a message has at most `ELEMENTS_MAX` array elements and tagged fields, so neither time nor memory runs away;
  - a string has at most 32,767 bytes, also where its length could say more;
  - unknown tagged fields are skipped (KIP-482), a known one must fill exactly the size it declares;
  - bytes after the message are ignored, as Kafka does.
Broken input raises `ProtocolViolation` or one of `wire.MALFORMED`; `codec` makes one of the two.

An encoder writes values of any version's dataclass as one version of the message. Values are trusted, being our own: a null where the
version has none, or a number too large for its field, ends as TypeError, AttributeError or struct.error, which `codec` turns into an
assertion.

A decoder stops after every DECODED_PER_STEP elements, an encoder after every ENCODED_PER_STEP. So whoever drives them can let others have
their turn meanwhile.

kio says `timedelta` and `datetime` where the wire has milliseconds. Here, and in all values this layer hands out, they are plain integers
in milliseconds: a timedelta cannot hold every int64, and building one costs more than reading the field.
"""

import contextlib
import dataclasses
import datetime
import struct
import types
import typing
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

from kio.static.protocol import Entity

from broker.protocol import wire

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

Decoder = Callable[[bytes], object]
StepwiseDecoder = Callable[[bytes], Generator[None, None, object]]
"""Returns the message when it has been iterated over; a step is over wherever it yields."""

DECODED_PER_STEP: Final = 500
"""Elements of arrays between two steps, numbers not counted: half a millisecond."""

_UUID_ZERO: Final = bytes(16)


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


class Source:
    """One function in the making. `variable` and `constant` hand out names that occur once."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"def generated({signature}):", "    pass"]
        self._indent = 1
        self._names = 0
        self._namespace: dict[str, object] = {}

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head:` and what is written inside the `with`, one step to the right."""
        self.line(f"{head}:")
        empty = len(self._lines)
        self._indent += 1
        yield
        if len(self._lines) == empty:
            self.line("pass")
        self._indent -= 1

    def variable(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def constant(self, value: object) -> str:
        self._names += 1
        name = f"c{self._names}"
        self._namespace[name] = value
        return name

    def bind(self, **constants: object) -> None:
        """Constants under names of the caller's choice."""
        self._namespace.update(constants)

    def compile(self, filename: str) -> Callable[..., object]:
        code = compile("\n".join(self._lines), f"<{filename}>", "exec")
        exec(code, self._namespace)  # noqa: S102
        return cast("Callable[..., object]", self._namespace["generated"])


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

    `values` may be the message's own description or one that `covers` it (`codec`).
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
    source.line(f"left = {DECODED_PER_STEP}")
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
                    source.line(f"left = {DECODED_PER_STEP}")
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


Encoder = Callable[[object, bytearray], object]
"""Appends the message to the bytearray."""
StepwiseEncoder = Callable[[object, bytearray], Iterator[None]]
"""Appends the message to the bytearray while it is iterated over; a step is over wherever it yields."""

ENCODED_PER_STEP: Final = 250
"""Elements of arrays between two steps, integers not counted: a third of a millisecond."""
SHORT_ARRAY: Final = 8
"""Arrays of numbers that are shorter have formats of their own."""


def compile_encoder(message: Structure, values: Structure) -> Encoder:
    """As `compile_stepwise_encoder`, all in one step."""
    encode = compile_stepwise_encoder(message, values)

    def encode_at_once(value: object, out: bytearray) -> None:
        for _ in encode(value, out):
            pass

    return encode_at_once


def compile_stepwise_encoder(message: Structure, values: Structure) -> StepwiseEncoder:
    """An encoder of `values` as `message`, field by name: what only `values` has is left out, what it lacks takes its default."""
    source = Source("value, out")
    source.bind(pack=struct.pack, uvarint=wire.uvarint, to_milliseconds=to_milliseconds, zero_uuid=_UUID_ZERO)
    source.line(f"left = {ENCODED_PER_STEP}")
    writer = _Writer(source, flexible=message.flexible)
    writer.structure(message, values, "value")
    writer.flush()
    # A message without arrays of structures yields nothing, and is a generator all the same.
    with source.block("if 0"):
        source.line("yield")
    return cast("StepwiseEncoder", source.compile(f"encoder of {message.cls.__name__} {message.cls.__version__}"))


class _Writer:
    """Emits the statements that write a structure. Neighbours of fixed size wait in a run and are packed at once."""

    def __init__(self, source: Source, *, flexible: bool, out: str = "out") -> None:
        self._source = source
        self._flexible = flexible
        self._out = out
        self._formats = ""
        self._expressions: list[str] = []

    def structure(self, message: Structure, values: Structure, value: str) -> None:
        """Write `value`, an instance of `values`, as `message`."""
        for field in message.fields:
            if field.tag is not None:
                continue
            target = values.find(field.name)
            local = self._source.variable()
            self._source.line(f"{local} = {self._source.constant(field.absent) if target is None else f'{value}.{field.name}'}")
            self._field(field, target or field, local)
        if message.flexible:
            self._tags(message, values, value)

    def flush(self) -> None:
        """Write the run."""
        if self._formats:
            packer = self._source.constant(struct.Struct(">" + self._formats).pack)
            self._source.line(f"{self._out} += {packer}({', '.join(self._expressions)})")
        self._formats = ""
        self._expressions = []

    def _fixed(self, code: str, *expressions: str) -> None:
        self._formats += code
        self._expressions += expressions

    def _field(self, field: Field, target: Field, local: str) -> None:
        if field.array:
            self._array(field, target, local)
        elif isinstance(field.kafka_type, Structure):
            self._inner_structure(field, target, local)
        elif field.kafka_type in FIXED_FORMATS:
            self._scalar(field.kafka_type, local)
        else:
            self._varying(field, local, nullable=field.nullable)

    def _scalar(self, kafka_type: str, local: str) -> None:
        if kafka_type in TIME_TYPES:
            with self._source.block(f"if {local}.__class__ is not int"):
                self._source.line(f"{local} = to_milliseconds({local})")
        expression = f"zero_uuid if {local} is None else {local}.bytes" if kafka_type == "uuid" else local
        self._fixed(FIXED_FORMATS[kafka_type], expression)

    def _varying(self, field: Field, local: str, *, nullable: bool) -> None:
        """A string or bytes; null has length -1."""
        source, body, length = self._source, self._source.variable(), self._source.variable()
        content = f"{local}.encode()" if field.kafka_type == "string" else local
        if nullable:
            with source.block(f"if {local} is None"):
                source.line(f"{body} = b''")
                source.line(f"{length} = -1")
            with source.block("else"):
                source.line(f"{body} = {content}")
                source.line(f"{length} = len({body})")
        else:
            source.line(f"{body} = {content}")
            source.line(f"{length} = len({body})")
        self._length("h" if field.kafka_type == "string" else "i", length)
        self.flush()
        source.line(f"{self._out} += {body}")

    def _array(self, field: Field, target: Field, local: str) -> None:
        source, length = self._source, self._source.variable()
        if field.nullable:
            source.line(f"{length} = -1 if {local} is None else len({local})")
        else:
            source.line(f"{length} = len({local})")
        self._length("i", length)
        self.flush()
        with source.block(f"if {length} > 0"):
            if field.kafka_type in FIXED_FORMATS and field.kafka_type != "uuid" and field.kafka_type not in TIME_TYPES:
                code = FIXED_FORMATS[str(field.kafka_type)]
                # Replicas, mostly: a format that is made and looked up again costs twice what it packs.
                short = source.constant(tuple(struct.Struct(f">{count}{code}").pack for count in range(SHORT_ARRAY)))
                with source.block(f"if {length} < {SHORT_ARRAY}"):
                    source.line(f"{self._out} += {short}[{length}](*{local})")
                with source.block("else"):
                    source.line(f"{self._out} += pack('>%d{code}' % {length}, *{local})")
                return
            element = source.variable()
            with source.block(f"for {element} in {local}"):
                if isinstance(field.kafka_type, Structure):
                    assert isinstance(target.kafka_type, Structure)
                    self.structure(field.kafka_type, target.kafka_type, element)
                elif field.kafka_type in FIXED_FORMATS:
                    self._scalar(field.kafka_type, element)
                else:
                    self._varying(field, element, nullable=False)
                self.flush()
                source.line("left -= 1")
                with source.block("if not left"):
                    source.line(f"left = {ENCODED_PER_STEP}")
                    source.line("yield")

    def _inner_structure(self, field: Field, target: Field, local: str) -> None:
        assert isinstance(field.kafka_type, Structure)
        assert isinstance(target.kafka_type, Structure)
        if not field.nullable or field.tag is not None:
            self.structure(field.kafka_type, target.kafka_type, local)
            return
        self.flush()
        # A nullable structure is led by a byte: negative is null (KIP-893).
        with self._source.block(f"if {local} is None"):
            self._source.line(f"{self._out} += b'\\xff'")
        with self._source.block("else"):
            self._fixed("b", "1")
            self.structure(field.kafka_type, target.kafka_type, local)
            self.flush()

    def _tags(self, message: Structure, values: Structure, value: str) -> None:
        """Tagged fields in the order of their tags, those that have their default left out (KIP-482)."""
        source = self._source
        known = sorted((field.tag, field) for field in message.fields if field.tag is not None and values.find(field.name) is not None)
        if not known:
            self._fixed("x")
            return
        self.flush()
        count, section = source.variable(), source.variable()
        source.line(f"{count} = 0")
        source.line(f"{section} = b''")
        for tag, field in known:
            target = values.find(field.name)
            assert target is not None
            local = source.variable()
            source.line(f"{local} = {value}.{field.name}")
            default = (target if isinstance(field.kafka_type, Structure) else field).absent
            with source.block(f"if {local} != {source.constant(default)}"):
                body = source.variable()
                source.line(f"{body} = bytearray()")
                writer = _Writer(source, flexible=self._flexible, out=body)
                writer._field(field, target, local)
                writer.flush()
                source.line(f"{count} += 1")
                source.line(f"{section} += {source.constant(wire.uvarint(tag))} + uvarint(len({body})) + {body}")
        source.line(f"{self._out}.append({count})")
        source.line(f"{self._out} += {section}")

    def _length(self, code: str, length: str) -> None:
        """A length or, as -1, null."""
        if not self._flexible:
            self._fixed(code, length)
            return
        self.flush()
        with self._source.block(f"if {length} < 127"):
            self._source.line(f"{self._out}.append({length} + 1)")
        with self._source.block("else"):
            self._source.line(f"{self._out} += uvarint({length} + 1)")
