"""How a cluster's costs grow with brokers, partitions and load: measured in virtual time, stated as laws, extrapolated."""
