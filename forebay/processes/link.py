"""The supervisor, as a worker sees it: a socket on standard input. Its end of file means that the supervisor is gone, however it went.

worker → supervisor   one JSON object per line: {"ready": {…}} once, or {"refused": "why it cannot start"}
supervisor → worker   nothing
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

_STANDARD_INPUT: Final = 0
_READ_BYTES: Final = 4096


def refusal_in(received: bytes) -> str:
    """Why the worker said it could not start; empty if it did not. `received` are all bytes of the link."""
    messages = [json.loads(line) for line in received.splitlines()]
    return next((str(message["refused"]) for message in messages if "refused" in message), "")


class SupervisorLink:
    """`descriptor` is open for as long as the process lives."""

    def __init__(self, *, descriptor: int = _STANDARD_INPUT) -> None:
        self._descriptor = descriptor

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the supervisor is; from a thread of its own, because the event loop may hang."""
        threading.Thread(target=self._wait, args=(gone,), name="supervisor-watch", daemon=True).start()

    def ready(self, facts: Mapping[str, Any]) -> None:
        self._send({"ready": dict(facts)})

    def refused(self, message: str) -> None:
        self._send({"refused": message})

    def _send(self, message: Mapping[str, Any]) -> None:
        # A supervisor that is gone has nobody to tell; `watch` ends this process.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def _wait(self, gone: Callable[[], None]) -> None:
        # A reset is an end, too.
        with contextlib.suppress(ConnectionError):
            while os.read(self._descriptor, _READ_BYTES):
                pass
        gone()
