"""What is let go without Python's cyclic collector, which on a busy broker looks through old objects once in minutes."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """The collector rests, after it has collected what is left of other tests.

    It does not look at what is alive now any more: at the end of a run that would take a fifth of a second for each test that asks.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
