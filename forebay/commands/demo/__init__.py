"""`forebay demo`: a year of real flights through an embedded broker, or several, and back, with every record accounted for.

flights          the data set as Kafka records
stores           where they go
broker_process   a broker, in a process of its own
cluster          the brokers of a run
own_topic        which topic is the demo's own
administration   makes it and deletes it
ledger           what was sent against what was read
replay           the producer and the consumer
killing          what happens to the broker that is produced through, if there are others
store_use        objects, bytes, and what the requests would cost on S3
upkeep           its objects become segments
progress         bars on a terminal, lines elsewhere
run              the whole show
"""
