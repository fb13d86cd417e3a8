"""A Kafka client of any cluster, for the commands that are one: how to connect, what to say when it fails, how to print."""
