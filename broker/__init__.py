"""One broker process: Kafka clients on one side, the log on the other.

assembly      settings → a broker that listens
server        accept, bounds, drain
connection    bytes in, frames out, back-pressure
dispatch      frames to handlers
handlers/     one module per Kafka API
fetching/     what long polls wait for
protocol/     the wire, without I/O
admission     the budget of request bytes
http/         health, metrics
settings/     file, environment and flags → values
"""
