"""`forebay bench`: loads on any Kafka cluster, as a client of the usual library makes them."""
