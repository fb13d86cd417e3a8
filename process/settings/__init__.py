"""The settings of a broker: parsed, checked and composed here, and nowhere else.

errors      what an operator must fix before a broker can start, and the exit code it ends with
ports       why an address cannot be listened on
notation    how values are written: durations, sizes, counts, choices
listeners   Kafka's listener syntax
urls        where the stores are
sections    one frozen value per part of the broker
conflicts   what is allowed alone but not together
exposure    what others than this machine can reach without a login
model       `Settings`: all sections composed
keys        every setting with its notation, default and description, for messages and documents
sources     YAML file, environment, command line → what was given, and where
loading     sources → `Settings`, or all problems at once
"""
