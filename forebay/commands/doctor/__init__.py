"""`forebay doctor`: checks everything a broker needs one by one, each with a deadline and a verdict of one line.

finding     a verdict, a run of checks of which each may fail alone, and the report
run         which checks there are, in their order; versions, open files, memory, disks; both stores beside each other
metadata    the metadata store: reach, cluster, brokers, conditions, sessions, latency
objects     the object store: reach, conditions, reads, lists, deletes, latency, versions of a bucket
addresses   whether listeners can be bound, or who has them, and the addresses that clients are given

Nothing is left behind: what is written has names of its own and is removed, and no store is made where there is none.
"""
