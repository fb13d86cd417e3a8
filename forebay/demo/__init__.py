"""`forebay demo`: a year of real flights through an embedded broker and back, with every record accounted for.

flights          the data set as Kafka records
broker_process   the broker, in a process of its own
ledger           what was sent against what was read
replay           the producer and the consumer
store_use        objects, bytes, and what the requests would cost on S3
progress         bars on a terminal, lines elsewhere
run              the whole show
"""
