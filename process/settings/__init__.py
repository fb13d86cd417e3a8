"""The settings of a broker: parsed, checked and composed here, and nowhere else.

errors      what an operator must fix before a broker can start, and the exit code it ends with
ports       why an address cannot be listened on
sections    every setting with its default and description: one frozen value per part of the broker
notation    how values are written: durations, sizes, choices, listeners, store URLs
model       `Settings`: all sections composed; defaults for a shared store, and combinations that are refused
reference   every setting as a table, read off `sections`, for messages and documents
loading     YAML file, environment, command line → `Settings`, or all problems at once
"""
