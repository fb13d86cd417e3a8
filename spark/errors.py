"""What ends a session or a job, in one sentence each that says what to do."""


class SparkUnavailable(Exception):
    """A session cannot be started here. `str()` is one line: what is missing, and how to get it."""


class JobFailed(Exception):
    """A job cannot go on. `str()` says what is wrong, where, and what to do; nothing was lost, and nothing is there twice."""
