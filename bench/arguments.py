"""Numbers on the command lines of the benches."""

import argparse


def positive(text: str) -> float:
    """Raise `ArgumentTypeError` for what is not more than 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def count(text: str) -> int:
    """Raise `ArgumentTypeError` for less than 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
