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
