"""The live brokers as one listener's clients can reach them."""

from typing import NamedTuple

from broker.handlers.context import Context


class Node(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None


async def live_nodes(context: Context) -> list[Node]:
    """By id; brokers without a listener of that name are left out, as in Kafka. Raises `StorageError`."""
    nodes = []
    for record in await context.parts.brokers.live():
        endpoint = record.endpoint(context.listener)
        if endpoint is not None:
            nodes.append(Node(record.broker_id, endpoint.host, endpoint.port, record.rack))
    return nodes


def controller_of(nodes: list[Node]) -> int:
    """The broker that clients send administration to: any can do it, all name the same one. -1 if there is none."""
    return nodes[0].broker_id if nodes else -1
