"""The settings of a broker: parsed, checked and composed here, and nowhere else.

errors      what an operator must fix before a broker can start, and the exit code it ends with
ports       why an address cannot be listened on
notation    how values are written: durations, sizes, counts, choices
listeners   Kafka's listener syntax
urls        where the stores are
model       the sections and `Settings`, an immutable value
keys        every setting with its notation, default and description; feeds the documents and `forebay config`
sources     YAML file, environment, command line → what was given, and where
loading     sources → `Settings`, or all problems at once
"""
