"""`forebay topic`: topics and their records, through any broker of a Kafka cluster."""
