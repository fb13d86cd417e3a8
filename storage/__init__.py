"""Forebay's leaderless log, from its ports up.

vocabulary, errors, limits, recordbatch     the words, the bounds, the unit of data at rest
objects/, metadata/                         the two ports and what implements them
cache/                                      blocks of objects
formats/                                    bytes at rest, one module per version
catalog/                                    small durable facts: cluster, topics, brokers, producer ids
log/                                        append, commit, read
opening                                     URL → stores
"""
