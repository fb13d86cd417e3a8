"""Encoders compiled from the schema: values of any version's dataclass written as one version of the message.

Values are trusted, being our own: a null where the version has none, or a number too large for its field, is a programmer's
error and ends as TypeError, AttributeError or struct.error, which `codec` turns into an assertion.

An encoder stops after every STEP_ELEMENTS elements, so that whoever drives it can let others have their turn while it writes an answer
about thousands of partitions.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, cast

from broker.protocol import wire
from broker.protocol.generated import Source
from broker.protocol.schema import FIXED_FORMATS, TIME_TYPES, Field, Structure, to_milliseconds

Encoder = Callable[[object, bytearray], object]
"""Appends the message to the bytearray."""
StepwiseEncoder = Callable[[object, bytearray], Iterator[None]]
"""Appends the message to the bytearray while it is iterated over; a step is over wherever it yields."""

STEP_ELEMENTS: Final = 250
"""Elements of arrays between two steps, integers not counted: a third of a millisecond."""
SHORT_ARRAY: Final = 8
"""Arrays of numbers that are shorter have formats of their own."""

_UUID_ZERO: Final = bytes(16)


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
    source.line(f"left = {STEP_ELEMENTS}")
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
                # Replicas, mostly: a format that is made and looked up anew costs twice what it packs.
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
                    source.line(f"left = {STEP_ELEMENTS}")
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
