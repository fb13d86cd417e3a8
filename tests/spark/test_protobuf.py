"""Protobuf as rows: the column of each type, values that do not change on their way, and what is said about bytes that are no message."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from spark.decoding import Decoding, dead_letters, typed_rows
from spark.errors import JobFailed
from spark.jobs.materialize import MaterializeSettings, decoding_of
from spark.protobuf import ProtobufSchema, protobuf_columns, row_reader
from tests.spark.test_decoding import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

PROTO: Final = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
message First { string name = 1; message Inner { string name = 1; } }
message All {
  int32 i32 = 1; sint32 s32 = 2; sfixed32 sf32 = 3; uint32 u32 = 4; fixed32 f32 = 5;
  int64 i64 = 6; sint64 s64 = 7; sfixed64 sf64 = 8; uint64 u64 = 9; fixed64 f64 = 10;
  float real = 11; double doubled = 12; bool flag = 13; string text = 14; bytes raw = 15;
  enum Kind { NONE = 0; SOME = 1; } Kind kind = 16;
  optional int32 maybe = 17; oneof choice { string left = 18; uint64 right = 19; }
  google.protobuf.Timestamp at = 20;
  message Leg { string dest = 1; repeated uint64 stops = 2; } Leg leg = 21;
  repeated Leg legs = 22; map<string, Leg> by_name = 23; map<int64, bytes> by_number = 24; repeated Kind kinds = 25;
}
message Node { string name = 1; repeated Node children = 2; }
message Around { Node node = 1; }
message Nothing {}
message Twice { string name = 1; string NAME = 2; }
message Newer {
  int32 i32 = 1; string added = 99;
  message Leg { string dest = 1; int32 added = 9; } Leg leg = 21; repeated Leg legs = 22; map<string, Leg> by_name = 23;
}
"""
OLDER: Final = """
syntax = "proto2";
package q;
message Order {
  required string id = 1; optional string note = 2; enum Kind { A = 0; } optional Kind kind = 3; optional Line line = 4;
  message Line { required int32 count = 1; } extensions 100 to 200;
}
message Written {
  optional bytes id = 1; optional bytes note = 2; optional int32 kind = 3; optional Line line = 4;
  message Line { optional int32 count = 1; }
}
extend Order { optional string extra = 100; }
"""
NO_PROTOBUF: Final = "the value is not Protobuf of this message"
INDEXES: Final = "the value does not say which message of its schema it is"


class Compiled:
    def __init__(self, descriptors: bytes) -> None:
        self.descriptors = descriptors
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            self._pool.AddSerializedFile(file.SerializeToString())

    def kind(self, name: str) -> Any:
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))

    def schema(self, name: str) -> ProtobufSchema:
        return ProtobufSchema(descriptors=self.descriptors, message=name)

    def columns(self, name: str) -> str:
        return protobuf_columns(self.schema(name)).simpleString()

    def read(self, name: str, value: bytes, *, has_indexes: bool = False, refuses_unknown: bool = False) -> Any:
        return row_reader(self.schema(name), has_indexes=has_indexes, unknown_fields="dead-letters" if refuses_unknown else "ignore")(value)


def compiled_from(folder: Path, text: str, *options: str) -> bytes:
    (folder / "schema.proto").write_text(text)
    made = folder / "schema.pb"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={made}", *options, "schema.proto"]
    subprocess.run(protoc, check=True)
    return made.read_bytes()


@pytest.fixture(scope="module")
def protos(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(compiled_from(tmp_path_factory.mktemp("protos"), PROTO, "--include_imports"))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(compiled_from(tmp_path_factory.mktemp("older"), OLDER))


def test_every_type_of_protobuf_has_a_column_that_holds_all_its_values(protos: Compiled) -> None:
    leg = "struct<dest:string,stops:array<decimal(20,0)>>"
    assert protos.columns("p.All") == (
        "struct<i32:int,s32:int,sf32:int,u32:bigint,f32:bigint,i64:bigint,s64:bigint,sf64:bigint,u64:decimal(20,0),f64:decimal(20,0),"
        "real:float,doubled:double,flag:boolean,text:string,raw:binary,kind:string,maybe:int,left:string,right:decimal(20,0),at:timestamp,"
        f"leg:{leg},legs:array<{leg}>,by_name:map<string,{leg}>,by_number:map<bigint,binary>,kinds:array<string>>"
    )


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("p.Around", "the message p.Node contains itself, and no column can"),
        ("p.Nothing", "the message p.Nothing has no fields"),
        ("p.Twice", "the message p.Twice has two fields name"),
        ("p.Alls", "it has no message p.Alls, but google.protobuf.Timestamp, p.First, p.All"),
    ],
)
def test_a_message_that_no_table_can_hold_is_refused(protos: Compiled, message: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        protos.columns(message)


def test_a_schema_as_people_write_it_is_no_set_of_descriptors() -> None:
    with pytest.raises(ValueError, match="it is no set of descriptors: make one with `protoc --include_imports"):
        protobuf_columns(ProtobufSchema(descriptors=PROTO.encode(), message="p.All"))


def test_a_set_of_descriptors_without_its_imports_is_refused(tmp_path: Path) -> None:
    alone = compiled_from(tmp_path, PROTO)

    with pytest.raises(ValueError, match=r"schema\.proto needs a file that is not in it: make one with `protoc --include_imports"):
        protobuf_columns(ProtobufSchema(descriptors=alone, message="p.All"))


def wide(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEG: Final = st.tuples(TEXT, st.lists(wide(64, signed=False), max_size=2))
KIND: Final = st.sampled_from([(0, "NONE"), (1, "SOME"), (7, "7"), (-1, "-1")])
SCALARS: Final = {
    **dict.fromkeys(["i32", "s32", "sf32", "maybe"], wide(32, signed=True)),
    **dict.fromkeys(["u32", "f32"], wide(32, signed=False)),
    **dict.fromkeys(["i64", "s64", "sf64"], wide(64, signed=True)),
    **dict.fromkeys(["u64", "f64", "right"], wide(64, signed=False)),
    "real": st.floats(width=32, allow_nan=False),
    "doubled": st.floats(allow_nan=False),
    "flag": st.booleans(),
    "left": TEXT,
    "text": TEXT,
    "raw": st.binary(max_size=5),
}
DECIMALS: Final = {"u64", "f64", "right"}
UNSET: Final = {"maybe": None, "left": None, "right": None, "at": None, "leg": None}
AT: Final = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  # hypothesis wants them so


def filled(message: Any, draw: st.DrawFn) -> dict[str, Any]:
    """Set some fields. Return what the row has to have, of all of them."""

    def fill(leg: Any, drawn: tuple[str, list[int]]) -> tuple[str, list[Decimal]]:
        leg.dest = drawn[0]
        leg.stops.extend(drawn[1])
        return drawn[0], [Decimal(one) for one in drawn[1]]

    default = {"flag": False, "text": "", "raw": b"", "kind": "NONE", "real": 0.0, "doubled": 0.0}
    row = {name: default.get(name, Decimal(0) if name in DECIMALS else 0) for name in SCALARS} | {"kind": "NONE"} | UNSET
    for name in draw(st.sets(st.sampled_from(sorted(SCALARS.keys() - {"left", "right"})))):
        row[name] = draw(SCALARS[name])
        setattr(message, name, row[name])
    if chosen := draw(st.sampled_from(["left", "right", ""])):
        row[chosen] = draw(SCALARS[chosen])
        setattr(message, chosen, row[chosen])
    row |= {name: Decimal(row[name]) for name in DECIMALS if row[name] is not None}
    if draw(st.booleans()):
        message.kind, row["kind"] = draw(KIND)
        row["at"] = draw(AT)
        since = row["at"] - datetime(1970, 1, 1, tzinfo=UTC)
        message.at.seconds, message.at.nanos = since // timedelta(seconds=1), since.microseconds * 1_000 + draw(st.integers(0, 999))
        row["leg"] = fill(message.leg, draw(LEG))
    row["legs"] = [fill(message.legs.add(), one) for one in draw(st.lists(LEG, max_size=2))]
    row["by_name"] = {key: fill(message.by_name[key], one) for key, one in draw(st.dictionaries(TEXT, LEG, max_size=2)).items()}
    row["by_number"] = draw(st.dictionaries(wide(64, signed=True), st.binary(max_size=3), max_size=2))
    message.by_number.update(row["by_number"])
    kinds = draw(st.lists(KIND, max_size=3))
    message.kinds.extend(number for number, _ in kinds)
    return row | {"kinds": [name for _, name in kinds]}


@given(data=st.data())
def test_a_row_has_what_was_set_in_its_message(protos: Compiled, data: st.DataObject) -> None:
    message = protos.kind("p.All")()
    expected = filled(message, data.draw)

    row, error = protos.read("p.All", message.SerializeToString())

    assert error is None
    assert dict(zip(protobuf_columns(protos.schema("p.All")).fieldNames(), row, strict=True)) == expected


@given(value=st.binary(max_size=40))
def test_any_bytes_are_a_row_or_have_a_reason_and_never_both(protos: Compiled, value: bytes) -> None:
    row, error = protos.read("p.All", value)

    assert (row is None) != (error is None)


@given(data=st.data())
def test_a_message_that_was_cut_is_no_other_row(protos: Compiled, data: st.DataObject) -> None:
    message = protos.kind("p.First")(name=data.draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
    value = message.SerializeToString()

    assert protos.read("p.First", value[: data.draw(st.integers(1, len(value) - 1))]) == (None, NO_PROTOBUF)


def test_a_time_that_no_timestamp_can_be_is_refused(protos: Compiled) -> None:
    kind = protos.kind("p.All")

    assert protos.read("p.All", kind(at={"seconds": 2**60}).SerializeToString()) == (None, "at is no time between the years 1 and 9999")
    assert protos.read("p.All", kind(at={"nanos": -1}).SerializeToString()) == (None, "at has -1 nanoseconds, of a second")


def test_a_required_field_that_is_missing_is_named_wherever_it_is(older: Compiled) -> None:
    kind = older.kind("q.Written")

    assert older.read("q.Order", b"") == (None, "id is missing")
    assert older.read("q.Order", kind(id=b"1", line={}).SerializeToString()) == (None, "line.count is missing")
    assert older.read("q.Order", kind(id=b"1", line={"count": 0}).SerializeToString()) == (("1", None, None, (0,)), None)


def test_text_that_is_not_utf_8_is_refused_where_protobuf_allows_it(older: Compiled) -> None:
    assert older.read("q.Order", older.kind("q.Written")(id=b"1", note=b"\xff").SerializeToString()) == (None, "note is not UTF-8")


def test_what_a_newer_schema_has_written_is_ignored_or_named(protos: Compiled, older: Compiled) -> None:
    newer = protos.kind("p.Newer")(i32=4, added="x", leg={"added": 1}, legs=[{"dest": "A"}, {"added": 1}], by_name={"k": {"added": 2}})
    value = newer.SerializeToString()

    row, error = protos.read("p.All", value)
    assert (row[0], error) == (4, None)
    assert protos.read("p.All", value, refuses_unknown=True) == (
        None,
        "the schema does not have field 99, field by_name.9, field leg.9, field legs.9",
    )
    assert protos.read("p.All", protos.kind("p.All")(i32=4, leg={}).SerializeToString(), refuses_unknown=True)[1] is None

    odd = older.kind("q.Written")(id=b"1", kind=8).SerializeToString() + b"\xa2\x06\x01x"
    assert older.read("q.Order", odd) == (("1", None, None, None), None)
    assert older.read("q.Order", odd, refuses_unknown=True) == (
        None,
        "the schema does not have a value of kind, the extension q.extra",
    )


@pytest.mark.parametrize(
    ("message", "indexes", "error"),
    [
        ("p.First", b"\0", None),
        ("p.First", b"\x02\0", None),
        ("p.First.Inner", b"\x04\0\0", None),
        ("p.Newer", b"\x02\x0c", None),
        ("p.First", b"\x02\x02", "the value is message [1] of its schema, and p.First is [0]"),
        ("p.First.Inner", b"\0", "the value is message [0] of its schema, and p.First.Inner is [0, 0]"),
        ("p.First", b"\x01", INDEXES),
        ("p.First", b"\x04\0", INDEXES),
        ("p.First", b"\xff\xff\xff\xff\xff\xff", INDEXES),
        ("p.First", b"", INDEXES),
    ],
)
def test_the_indexes_of_a_registrys_serializer_have_to_lead_to_the_message(
    protos: Compiled, message: str, indexes: bytes, error: str | None
) -> None:
    body = b"" if error == INDEXES else protos.kind(message)().SerializeToString()

    row, found = protos.read(message, indexes + body, has_indexes=True)

    assert found == error
    assert (row is None) == (error is not None)


def protobuf_decoding(schema: ProtobufSchema, **given: Any) -> Decoding:
    return Decoding(layout="protobuf", schema=protobuf_columns(schema), protobuf=schema, **given)


def test_fields_of_protobuf_become_columns_and_what_is_none_a_dead_letter(spark: "SparkSession", protos: Compiled) -> None:
    at = datetime(2013, 1, 1, 10, 0, 0, 123_456, tzinfo=UTC)
    message = protos.kind("p.All")(
        i32=-(2**31), u32=2**32 - 1, s64=-(2**63), u64=2**64 - 1, real=0.1, flag=True, text="ü", raw=b"\0\xff", kind=1, right=5
    )
    message.at.FromDatetime(at)
    message.legs.add(dest="IAH", stops=[2**64 - 1])
    message.by_number[-1] = b"\0"
    frame = records(spark, message.SerializeToString(), b"", b"\xff", None)
    decoded = protobuf_decoding(protos.schema("p.All")).decoded(frame)

    found, empty = typed_rows(decoded).orderBy("kafka_offset").collect()

    assert (found.i32, found.u32, found.s64, found.u64) == (-(2**31), 2**32 - 1, -(2**63), Decimal(2**64 - 1))
    assert (found.flag, found.text, bytes(found.raw), found.kind, found.left, found.right) == (True, "ü", b"\0\xff", "SOME", None, 5)
    assert (found.legs[0].dest, found.legs[0].stops, bytes(found.by_number[-1])) == ("IAH", [Decimal(2**64 - 1)], b"\0")
    assert found.leg is None
    assert found.at.astimezone(UTC) == at
    assert abs(found.real - 0.1) < 1e-8
    assert (empty.kafka_offset, empty.i32, empty.text, empty.maybe, empty.at, empty.legs) == (1, 0, "", None, None, [])
    assert {row.offset: row.error for row in dead_letters(decoded).collect()} == {2: NO_PROTOBUF, 3: "there is no value"}


def test_protobuf_of_a_registry_is_read_behind_its_number_and_indexes(spark: "SparkSession", protos: Compiled) -> None:
    body = protos.kind("p.First")(name="UA").SerializeToString()
    frame = records(spark, b"\0\0\0\0\x07\0" + body, b"\0\0\0\0\x07\x02\x02" + body, body, b"\0\0\0\0\x07")
    decoded = protobuf_decoding(protos.schema("p.First"), framing="confluent").decoded(frame)

    assert [row.name for row in typed_rows(decoded).collect()] == ["UA"]
    assert {row.offset: row.error for row in dead_letters(decoded).collect()} == {
        1: "the value is message [1] of its schema, and p.First is [0]",
        2: "the value does not begin with the number of a schema",
        3: INDEXES,
    }


def test_materialize_takes_the_message_that_its_settings_name(spark: "SparkSession", protos: Compiled, tmp_path: Path) -> None:
    file = tmp_path / "schema.pb"
    file.write_bytes(protos.descriptors)
    given = MaterializeSettings(topics=("a",), table="t", checkpoint="c", layout="protobuf", schema=file, message="p.First")

    found = decoding_of(replace(given, framing="confluent", unknown_fields="dead-letters"), spark)

    expected = protobuf_decoding(protos.schema("p.First"), framing="confluent", unknown_fields="dead-letters")
    assert found == expected
    with pytest.raises(JobFailed, match=f"The schema {file} cannot be read: it has no message p.Last, but"):
        decoding_of(replace(given, message="p.Last"), spark)
