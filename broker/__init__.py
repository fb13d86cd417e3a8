"""One broker process of Forebay: Kafka clients on one side, the log on the other.

assembly      settings → a broker that listens
registration  the registered life: id, epoch, lost sessions
server        accept, bounds, drain
connection    bytes in, frames out, back-pressure
dispatch      frames to handlers
handlers/     one module per Kafka API
groups/       consumer groups: state machine, offsets, coordinator
fetching/     what long polls wait for
protocol/     the wire, without I/O
leadership    which broker is named leader
addresses     what clients of one address hold, and who goes first
admission     the budget of request bytes
http/         health, metrics
settings/     file, environment and flags → values
"""
