"""The APIs of topics and where their partitions are."""
