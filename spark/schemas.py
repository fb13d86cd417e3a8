"""Columns from a schema file."""

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType


def json_columns(definitions: str) -> StructType:
    """Of SQL column definitions, as in `carrier STRING NOT NULL, dep_delay INT`; lines that begin with `--` are comments."""
    lines = [line for line in definitions.splitlines() if not line.lstrip().startswith("--")]
    schema = StructType.fromDDL(" ".join(lines).strip().rstrip(",;"))
    if not isinstance(schema, StructType) or not schema.fields:
        raise ValueError("it has no columns")
    return schema


def avro_columns(spark: SparkSession, schema: str) -> StructType:
    """As Spark reads a record of this Avro schema. Fields without a null in their type are columns that may not be null."""
    probe = spark.createDataFrame([], "value binary").select(from_avro("value", schema).alias("decoded"))
    found = probe.schema["decoded"].dataType
    if isinstance(found, StructType):
        return found
    raise ValueError(f"it is a schema of {found.simpleString()}, and a row needs a record")
