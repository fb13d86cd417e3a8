"""`forebay cluster`: the brokers of a Kafka cluster and whether all is well with them."""
