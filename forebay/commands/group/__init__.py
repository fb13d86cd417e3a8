"""`forebay group`: consumer groups of a Kafka cluster, what they have read and what they have not."""
