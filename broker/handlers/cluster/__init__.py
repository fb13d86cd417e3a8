"""The APIs of the cluster and its brokers."""
