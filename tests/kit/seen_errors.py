"""What a client was told, whatever its library calls it; and what the cases share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from tests.kit.raw_client import RawClient
from tests.kit.serving import Served

TIMEOUT_S: Final = 30.0
TOPIC: Final = "records"
PARTITIONS: Final = 2
CONFLUENT: Final = "confluent-kafka"
AIOKAFKA: Final = "aiokafka"
FRAME: Final = "a frame"
"""No library here can be made to send it: kio's types over a socket."""


@dataclass(frozen=True)
class Seen:
    """An error by Kafka's name for it, and the text beside it; None where the answer has no place for one."""

    client: str
    error: str
    message: str | None = None


@dataclass(frozen=True)
class Scene:
    """A broker with `TOPIC`, and administrators of it."""

    served: Served
    admin: Any

    @property
    def bootstrap(self) -> str:
        return self.served.bootstrap

    def raw(self, request: object) -> Any:
        with RawClient(self.served.kafka_port) as client:
            return client.ask(request)

    async def admin_told(self, future: Any) -> Seen:
        """What a future of the admin client ends with."""
        return await asyncio.to_thread(lambda: of_confluent(future.exception(TIMEOUT_S).args[0]))


def admin_of(served: Served) -> Any:
    return AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})


def of_confluent(error: KafkaError) -> Seen:
    code = error.code()
    if code == KafkaError._FATAL:
        # Of an error that ends the consumer only the text is handed on.
        code = next(known for known in ErrorCode if KafkaError(known.value).str() in error.str())
    return Seen(CONFLUENT, name_of(code), error.str())


def of_aiokafka(code: int, message: str | None = None) -> Seen:
    return Seen(AIOKAFKA, name_of(code), message)


def of_frame(code: ErrorCode, message: str | None = None) -> Seen:
    return Seen(FRAME, name_of(code), message)


def name_of(code: int) -> str:
    return ErrorCode(code).name.upper()


@contextlib.asynccontextmanager
async def aiokafka_client(bootstrap: str) -> AsyncIterator[Any]:
    """`await client.send(node_id, request)` of aiokafka's own requests."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap, client_id="errors")
    await client.bootstrap()
    try:
        yield client
    finally:
        await client.close()


async def node_of(client: Any) -> int:
    """The only broker."""
    await client.force_metadata_update()
    (broker,) = client.cluster.brokers()
    return int(broker.nodeId)
