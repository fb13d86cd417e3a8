"""How long a load waits for its brokers."""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from forebay.kafka_client.connection import ClusterConnection
from runtime.clock import Clock

POLL_S: Final = 0.1
POLL_LEAST_S: Final = 0.001
"""The library counts whole milliseconds: below one it does not wait at all."""

RecordsMoved = Callable[[int, int], object]
"""It hears how many more records there are, and how many bytes they have."""


class BrokerPatience:
    """It ends when nothing that was waited for has come for as long as the connection's timeout."""

    def __init__(self, connection: ClusterConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._heard_s = clock.monotonic_s()

    def heard(self) -> None:
        self._heard_s = self._clock.monotonic_s()

    def check(self) -> None:
        """Raise `ClientFailed` with the cause of the silence when it has lasted too long."""
        if self._clock.monotonic_s() - self._heard_s > self._connection.timeout_s:
            raise self._connection.failure(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
