"""`forebay doctor`: checks everything a broker needs one by one, each with a deadline and a verdict of one line.

finding     a verdict, and a run of checks of which each may fail alone
run         which checks there are, in their order
machine     versions, open files, memory, disks
place       embedded stores: where they are looked at, and what would be made
metadata    the metadata store: reach, cluster, brokers, conditions, sessions, latency
objects     the object store: reach, conditions, reads, lists, deletes, latency
answers     who answers at a Kafka or an HTTP port
ports       whether listeners can be bound, or who has them
advertised  the addresses that clients are given to connect to
views       lines and JSON

Nothing is left behind: what is written has names of its own and is removed, and no store is made where there is none.
"""
