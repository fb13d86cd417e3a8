"""The Kafka wire without I/O: framing, codecs, the order of replies, the table of what is served."""
