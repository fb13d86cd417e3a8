"""`forebay demo`: a year of real flights through an embedded broker, or several, and back, with every record accounted for.

flights     the data set as Kafka records
cluster     the brokers of a run, and their stores
own_topic   which topic is the demo's own; makes it and deletes it
replay      the producer, the consumer, and the ledger of what was sent against what was read
pipeline    Spark beside it
run         the whole show
"""
