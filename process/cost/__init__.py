"""What a cluster's object store costs: prices, an estimate before there is a cluster, and the bill as it runs up.

prices      dollars per request, GiB and month, by store; a file changes them or adds to them
estimate    a load → requests and dollars a month, beside Apache Kafka in three zones
meter       the requests of a process, as its store's clients count them → dollars
"""
