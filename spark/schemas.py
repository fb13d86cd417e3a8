"""Columns from a schema file."""

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


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
