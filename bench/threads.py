"""Work done at once: librdkafka does its part outside the interpreter's lock."""

import threading
from collections.abc import Callable, Sequence


def at_once(works: Sequence[Callable[[], None]]) -> None:
    """Do each in a thread of its own, and return when all have ended. Raise the first failure."""
    failures: list[BaseException] = []

    def do(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=do, args=(work,), name=f"work-{number}") for number, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
