"""Small durable facts: the cluster, topics, brokers, producer ids."""
