"""A partition as the command line names it: topic and number."""

Partition = tuple[str, int]
