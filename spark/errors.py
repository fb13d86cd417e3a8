"""What keeps Spark from starting, in one sentence each that says what to do."""


class SparkUnavailable(Exception):
    """A session cannot be started here. `str()` is one line: what is missing, and how to get it."""
