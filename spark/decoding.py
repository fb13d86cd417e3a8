"""Records of a topic as rows of a table: as they are (raw), or with the fields of their values as columns (typed), by a schema file.

Functions of frames, with no I/O; only Avro's columns need a session. `records` are as Spark's Kafka source gives them, with headers. A
record that is not what the schema says is no row: it is a dead letter, with its bytes and the reason.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark.protobuf import ProtobufSchema, row_reader
from spark.vocabulary import Framing, Layout, UnknownFields

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
RAW: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
    ]
)
"""A row of the raw layout."""
KAFKA_COLUMNS: Final = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key")
"""Beside the fields of the value, in a row of a typed layout."""
DEAD_LETTERS: Final = StructType([*RAW.fields, StructField("error", StringType())])

_DECODED: Final = "decoded"
_ERROR: Final = "error"
_CORRUPT: Final = "_corrupt_record"
_AROUND: Final = "forebay_around"
_FLAT: Final = r"^\s*\{[^{}]*\}\s*$"
_LAST: Final = "forebay: nothing comes after this"
_CONFLUENT_BYTES: Final = 5
"""A zero, and four bytes of the schema's number in a registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """`schema`: the columns; one that may not be null is one that a record must have. `avro_schema`: as Avro writes it, in JSON.

    `framing` confluent: five bytes before the value are passed over. `options` are those of Spark's `from_json`.
    `protobuf`: the message, as `protobuf_columns` has made `schema` of it.
    """

    layout: Layout
    schema: StructType = field(default_factory=StructType)
    avro_schema: str = ""
    protobuf: ProtobufSchema | None = None
    framing: Framing = "none"
    unknown_fields: UnknownFields = "ignore"
    options: Mapping[str, str] = field(default_factory=dict)

    def decoded(self, records: DataFrame) -> DataFrame:
        """Raw rows, and of a typed layout `decoded`, a struct, and `error`, null for those that are rows of the table."""
        rows = raw_rows(records)
        if self.layout == "raw":
            return rows
        body, framing_error = self._unframed()
        if self.layout == "json":
            return _from_json(rows, body, framing_error, self)
        if self.layout == "avro":
            # What cannot be read is a record of nulls, as one whose fields are null is: around it, the first is null itself.
            around = {"type": "record", "name": _AROUND, "fields": [{"name": _DECODED, "type": json.loads(self.avro_schema)}]}
            decoded = from_avro(body, json.dumps(around), {"mode": "PERMISSIVE"})[_DECODED]
            return _judged(rows.withColumn(_DECODED, decoded), framing_error, "the value is not Avro of this schema", self.schema)
        assert self.protobuf is not None, "Protobuf is decoded by a schema"
        return _from_protobuf(rows, body, framing_error, self, self.protobuf)

    def _unframed(self) -> tuple[Column, Column]:
        """The value without what comes before it, and what is wrong with that."""
        value = sql.col("value")
        if self.framing == "none":
            return value, sql.lit(None).cast("string")
        is_framed = (sql.length(value) >= _CONFLUENT_BYTES) & (sql.substring(value, 1, 1) == sql.lit(b"\0"))
        body = sql.when(is_framed, sql.expr(f"substring(value, {_CONFLUENT_BYTES + 1})"))
        return body, sql.when(~is_framed, sql.lit("the value does not begin with the number of a schema"))


def raw_rows(records: DataFrame) -> DataFrame:
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        sql.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
    )


def typed_rows(decoded: DataFrame) -> DataFrame:
    """Of what `Decoding.decoded` gives: fields of the value, then where it was in Kafka."""
    return decoded.where(sql.col(_ERROR).isNull()).select(
        f"{_DECODED}.*",
        *(sql.col(name.removeprefix("kafka_")).alias(name) for name in KAFKA_COLUMNS),
    )


def dead_letters(decoded: DataFrame) -> DataFrame:
    return decoded.where(sql.col(_ERROR).isNotNull()).select(*DEAD_LETTERS.fieldNames())


def _from_json(rows: DataFrame, body: Column, framing_error: Column, decoding: Decoding) -> DataFrame:
    text = body.cast("string")
    schema = StructType([*(StructField(one.name, one.dataType) for one in decoding.schema.fields), StructField(_CORRUPT, StringType())])
    how = dict(decoding.options) | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = rows.withColumn("parsed", sql.from_json(text, schema, how))
    fields = sql.struct(*(sql.col(f"parsed.{_quoted(one.name)}").alias(one.name) for one in decoding.schema.fields))
    is_good = sql.col("parsed").isNotNull() & sql.col(f"parsed.{_CORRUPT}").isNull() & _ends_where_it_ends(text, decoding.options)
    wrong = sql.coalesce(
        framing_error,
        sql.when(sql.col("value").isNotNull() & ~sql.is_valid_utf8(text), sql.lit("the value is not UTF-8")),
        _unknown(text, decoding),
    )
    found = parsed.withColumn(_DECODED, sql.when(is_good, fields)).drop("parsed")
    return _judged(found, wrong, "the value is not JSON of this schema", decoding.schema)


def _from_protobuf(rows: DataFrame, body: Column, framing_error: Column, decoding: Decoding, schema: ProtobufSchema) -> DataFrame:
    read = row_reader(schema, has_indexes=decoding.framing == "confluent", unknown_fields=decoding.unknown_fields)
    returned = StructType([StructField(_DECODED, decoding.schema), StructField(_ERROR, StringType())])
    # Without Arrow, which need not be installed.
    parsed = rows.withColumn("parsed", sql.udf(read, returned, useArrow=False)(body))
    found = parsed.withColumn(_DECODED, sql.col(f"parsed.{_DECODED}"))
    wrong = sql.coalesce(framing_error, sql.col(f"parsed.{_ERROR}"))
    return _judged(found, wrong, "the value is not Protobuf of this message", decoding.schema).drop("parsed")


def _ends_where_it_ends(text: Column, options: Mapping[str, str]) -> Column:
    """Whether the text is one JSON object and nothing else: `from_json` reads the first value and ignores what follows it.

    In an array before another object, what follows the first value makes more than two of them, or breaks the array, or ends it too soon.
    """
    array = sql.concat(sql.lit("["), text, sql.lit(f', {{"{_LAST}": true}}]'))
    objects = sql.from_json(array, ArrayType(StructType([StructField(_LAST, BooleanType())])), dict(options))
    is_alone = (sql.size(objects) == 2) & sql.get(objects, 1)[_LAST]
    return sql.coalesce(sql.when(text.rlike(_FLAT), True).otherwise(is_alone), sql.lit(False))


def _unknown(text: Column, decoding: Decoding) -> Column:
    if decoding.unknown_fields == "ignore":
        return sql.lit(None).cast("string")
    known = sql.array(*(sql.lit(one.name) for one in decoding.schema.fields))
    unknown = sql.array_except(sql.json_object_keys(text), known)
    names = sql.concat(sql.lit("the schema does not have "), sql.array_join(unknown, ", "))
    # Spark lists no fields of what only its JSON options make JSON.
    return sql.when(sql.col(_DECODED).isNotNull() & unknown.isNull(), sql.lit("its fields cannot be listed")).when(
        sql.size(unknown) > 0, names
    )


def _judged(rows: DataFrame, wrong: Column, otherwise: str, schema: StructType) -> DataFrame:
    """With the first reason why a record is none of the table's rows."""
    missing = [
        sql.when(sql.col(f"{_DECODED}.{_quoted(one.name)}").isNull(), sql.lit(f"{one.name} is missing"))
        for one in schema.fields
        if not one.nullable
    ]
    return rows.withColumn(
        _ERROR,
        sql.coalesce(
            sql.when(sql.col("value").isNull(), sql.lit("there is no value")),
            wrong,
            sql.when(sql.col(_DECODED).isNull(), sql.lit(otherwise)),
            *missing,
        ),
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def json_columns(definitions: str) -> StructType:
    """Of SQL column definitions, as in `carrier STRING NOT NULL, dep_delay INT`; lines that begin with `--` are comments."""
    lines = [line for line in definitions.splitlines() if not line.lstrip().startswith("--")]
    schema = StructType.fromDDL(" ".join(lines).strip().rstrip(",;"))
    if not isinstance(schema, StructType) or not schema.fields:
        raise ValueError("it has no columns")
    if within := [one.name for one in schema.fields if _has_required(one.dataType)]:
        raise ValueError(f"NOT NULL is for columns, and not for what is within one: {within[0]}")
    return schema


def _has_required(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_required(kind.elementType)
    if isinstance(kind, MapType):
        return _has_required(kind.valueType)
    return isinstance(kind, StructType) and any(not one.nullable or _has_required(one.dataType) for one in kind.fields)


def avro_columns(spark: SparkSession, schema: str) -> StructType:
    """As Spark reads a record of this Avro schema. Fields without a null in their type are columns that may not be null."""
    probe = spark.createDataFrame([], "value binary").select(from_avro("value", schema).alias("decoded"))
    found = probe.schema["decoded"].dataType
    if isinstance(found, StructType):
        return found
    raise ValueError(f"it is a schema of {found.simpleString()}, and a row needs a record")
