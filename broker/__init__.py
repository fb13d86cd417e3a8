"""One broker process of Forebay: Kafka clients on one side, the log on the other.

assembly       settings → a broker that listens
server         accept, bounds, drain
connection     bytes in, frames out, order of replies, back-pressure
admission      the budget of request bytes; responses: that of replies
addresses      what clients of one address hold, and who goes first
dispatch       frames to handlers
handlers/      one module per Kafka API; handling/: what they share
delayed_fetch  what long polls wait for
groups/        consumer groups: state machine, store, coordinator
cluster/       which broker leads, owns and lives; registration
protocol/      the wire, without I/O
http/          the HTTP API of Forebay
zone_cache/    blocks that brokers of a zone share
limits         bounds of requests, fetches and groups
"""
