"""Forebay's data pipeline in Spark: it speaks Kafka and reads tables like any outsider, and imports nothing of the broker."""
