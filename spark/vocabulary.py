"""Words that settings are written with."""

from typing import Literal

Layout = Literal["raw", "json", "avro", "protobuf"]
"""How a value becomes columns."""
Framing = Literal["none", "confluent"]
"""What a schema registry's serializer writes before a value."""
UnknownFields = Literal["ignore", "dead-letters"]
TableFormat = Literal["delta", "parquet"]
TableStart = Literal["log", "table"]
"""Where an audit begins."""
Gaps = Literal["auto", "allowed", "refused"]
"""Offsets that have no record."""
Emission = Literal["update", "append"]
"""When a row of an aggregation is written: with every batch that changes it, or once, when nothing can change it any more."""
KeyFormat = Literal["bytes", "string"]
"""What a key is in a table."""
