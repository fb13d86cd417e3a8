"""The official client of Oxia, `oxia` 0.2.1 (docs/internals/adr/0006), without its first race.

Its thread uses what its constructor makes only after it started the thread: an answer that comes at once ends the thread, and the
constructor waits for 30 s and fails.
"""

import contextlib
import time
from collections.abc import Iterator
from unittest.mock import patch

import oxia
from oxia.internal.service_discovery import ServiceDiscovery


class Discovery(ServiceDiscovery):
    def get_assignments(self) -> None:
        while not hasattr(self, "_init_barrier"):
            time.sleep(0.001)
        super().get_assignments()


@contextlib.contextmanager
def official_client(address: str) -> Iterator[oxia.Client]:
    with patch("oxia.client.ServiceDiscovery", Discovery):
        client = oxia.Client(address)
    try:
        yield client
    finally:
        client.close()
