"""Records as rows: what is a row, what is a dead letter, and why. Static frames, no broker."""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from spark.decoding import DEAD_LETTERS, HEADERS, RAW, Decoding, avro_columns, dead_letters, json_columns, raw_rows, typed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)

AT = datetime(2013, 1, 1, 10, tzinfo=UTC)
COLUMNS = "carrier STRING NOT NULL, dep_delay INT, legs ARRAY<STRUCT<dest: STRING>>"
AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "dep_delay", "type": ["null", "int"]}],
}


def records(spark: "SparkSession", *values: bytes | None) -> "DataFrame":
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

    schema = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", HEADERS),
        ]
    )
    rows = [(b"key", value, "flights", 3, offset, AT, 0, [("origin", b"a"), ("null", None)]) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, schema)


def json_decoding(**given: Any) -> Decoding:
    return Decoding(layout="json", schema=json_columns(COLUMNS), **given)


def errors(decoding: Decoding, frame: "DataFrame") -> dict[int, str]:
    return {row.offset: row.error for row in dead_letters(decoding.decoded(frame)).collect()}


def test_raw_rows_are_the_records_as_they_are(spark: "SparkSession") -> None:
    found = raw_rows(records(spark, b"\xff\x00", None))

    assert found.schema.simpleString() == RAW.simpleString()
    first, second = sorted(found.collect(), key=lambda row: row.offset)
    assert (first.topic, first.partition, first.offset, bytes(first.key), bytes(first.value)) == ("flights", 3, 0, b"key", b"\xff\x00")
    assert [(one.key, one.value) for one in first.headers] == [("origin", b"a"), ("null", None)]
    assert second.value is None


def test_fields_of_json_become_columns_beside_where_they_were(spark: "SparkSession") -> None:
    frame = records(spark, b'{"carrier": "UA", "dep_delay": -4, "legs": [{"dest": "IAH"}], "new": true}', b'{"carrier": "AA"}')

    found = typed_rows(json_decoding().decoded(frame))

    assert found.columns == [
        *("carrier", "dep_delay", "legs"),
        *("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key"),
    ]
    first, second = sorted(found.collect(), key=lambda row: row.kafka_offset)
    assert (first.carrier, first.dep_delay, first.legs[0].dest, first.kafka_partition) == ("UA", -4, "IAH", 3)
    assert (second.carrier, second.dep_delay, second.legs, second.kafka_offset) == ("AA", None, None, 1)


def test_what_is_not_json_of_the_schema_is_a_dead_letter_with_the_reason(spark: "SparkSession") -> None:
    frame = records(
        spark,
        b'{"carrier": "UA"}',
        b'{"carrier": "UA"',
        b'{"carrier": "UA", "dep_delay": "late"}',
        b'{"dep_delay": 4}',
        b"null",
        b"",
        None,
        b'{"carrier": "\xff"}',
        b'{"carrier": "UA", "dep_delay": 99999999999}',
        b"[1, 2]",
    )

    assert errors(json_decoding(), frame) == {
        1: "the value is not JSON of this schema",
        2: "the value is not JSON of this schema",
        3: "carrier is missing",
        4: "the value is not JSON of this schema",
        5: "the value is not JSON of this schema",
        6: "there is no value",
        7: "the value is not UTF-8",
        8: "the value is not JSON of this schema",
        9: "the value is not JSON of this schema",
    }


def test_every_record_is_a_row_or_a_dead_letter_and_none_is_both(spark: "SparkSession") -> None:
    values = [
        b'{"carrier": "UA"}',
        b"{",
        None,
        b'{"carrier": null}',
        b'{"carrier": "UA"} {"carrier": "AA"}',
        b'{"carrier": "UA"} x',
        b"7",
        b'"x"',
        b'{"carrier": "UA", "legs": []}, {"carrier": "AA"}',
        b'{"carrier": "UA", "legs": []}] }',
        b'{"carrier": "UA", "legs": [{"dest": "A"}, {"dest": "} {"}]} ',
    ]
    decoded = json_decoding().decoded(records(spark, *values))

    rows = [row.kafka_offset for row in typed_rows(decoded).collect()]
    dead = [row.offset for row in dead_letters(decoded).collect()]

    assert sorted(rows + dead) == list(range(len(values)))
    assert rows == [0, 10]


def test_a_dead_letter_has_all_that_the_record_had(spark: "SparkSession") -> None:
    (found,) = dead_letters(json_decoding().decoded(records(spark, b"{"))).collect()

    assert found.asDict(recursive=True) == {
        "topic": "flights",
        "partition": 3,
        "offset": 0,
        "timestamp": found.timestamp,
        "timestamp_type": 0,
        "key": b"key",
        "value": b"{",
        "headers": [{"key": "origin", "value": b"a"}, {"key": "null", "value": None}],
        "error": "the value is not JSON of this schema",
    }
    assert list(found.asDict()) == DEAD_LETTERS.fieldNames()


def test_fields_that_the_schema_does_not_have_can_be_dead_letters(spark: "SparkSession") -> None:
    frame = records(spark, b'{"carrier": "UA"}', b'{"carrier": "UA", "tail": 1, "year": 2}', b"{")

    assert errors(json_decoding(unknown_fields="dead-letters"), frame) == {
        1: "the schema does not have tail, year",
        2: "the value is not JSON of this schema",
    }


def test_what_a_registrys_serializer_writes_before_a_value_is_passed_over(spark: "SparkSession") -> None:
    frame = records(spark, b'\0\0\0\0\x07{"carrier": "UA"}', b'{"carrier": "UA"}', b"\0\0", None)
    decoding = json_decoding(framing="confluent")

    assert [row.carrier for row in typed_rows(decoding.decoded(frame)).collect()] == ["UA"]
    assert errors(decoding, frame) == {
        1: "the value does not begin with the number of a schema",
        2: "the value does not begin with the number of a schema",
        3: "there is no value",
    }


def avro_of(carrier: str, delay: int | None) -> bytes:
    """As Avro writes it: a string is its length and its bytes, a union the number of its branch; numbers are zigzag."""
    text = carrier.encode()
    return bytes([2 * len(text)]) + text + (b"\0" if delay is None else bytes([2, 2 * delay]))


def test_fields_of_avro_become_columns(spark: "SparkSession") -> None:
    schema = json.dumps(AVRO)
    decoding = Decoding(layout="avro", schema=avro_columns(spark, schema), avro_schema=schema)
    frame = records(spark, avro_of("UA", 12), avro_of("AA", None), b"\xff", None)

    decoded = decoding.decoded(frame)

    assert [(row.carrier, row.dep_delay) for row in typed_rows(decoded).orderBy("kafka_offset").collect()] == [("UA", 12), ("AA", None)]
    assert errors(decoding, frame) == {2: "the value is not Avro of this schema", 3: "there is no value"}


def test_what_is_not_avro_is_told_from_a_record_of_nulls(spark: "SparkSession") -> None:
    schema = json.dumps(AVRO | {"fields": AVRO["fields"][1:]})
    decoding = Decoding(layout="avro", schema=avro_columns(spark, schema), avro_schema=schema)
    frame = records(spark, b"\0", b"\x07")

    assert [row.kafka_offset for row in typed_rows(decoding.decoded(frame)).collect()] == [0]
    assert errors(decoding, frame) == {1: "the value is not Avro of this schema"}


def test_a_string_takes_whatever_json_has_in_its_place(spark: "SparkSession") -> None:
    frame = records(spark, b'{"carrier": 5}', b'{"carrier": {"x": 1}}')

    assert [row.carrier for row in typed_rows(json_decoding().decoded(frame)).orderBy("kafka_offset").collect()] == ["5", '{"x":1}']


def test_what_only_options_make_json_is_taken_as_a_whole_and_its_fields_are_no_secret(spark: "SparkSession") -> None:
    frame = records(spark, b'{carrier: "UA", legs: [{dest: "IAH"}]}', b'{carrier: "AA"}')
    lenient = {"allowUnquotedFieldNames": "true"}

    assert [row.carrier for row in typed_rows(json_decoding(options=lenient).decoded(frame)).collect()] == ["UA", "AA"]
    assert errors(json_decoding(options=lenient, unknown_fields="dead-letters"), frame) == dict.fromkeys(
        (0, 1), "its fields cannot be listed"
    )


def test_not_null_within_a_column_is_refused() -> None:
    with pytest.raises(ValueError, match="NOT NULL is for columns, and not for what is within one: legs"):
        json_columns("carrier STRING, legs ARRAY<STRUCT<dest: STRING NOT NULL>>")


def test_an_avro_schema_that_is_no_record_is_refused(spark: "SparkSession") -> None:
    with pytest.raises(ValueError, match="a schema of string, and a row needs a record"):
        avro_columns(spark, '"string"')
