"""The live brokers as one listener's clients can reach them."""

from typing import NamedTuple

from broker.coordination.rendezvous import Candidate
from broker.handling.context import Context
from storage.catalog.brokers import BrokerRecord


class Node(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.broker_id, self.rack)


async def live_nodes(context: Context) -> list[Node]:
    """By id; brokers without a listener of that name are left out, as in Kafka. Raises `StorageError`."""
    return _reachable(await context.parts.brokers.live(), context.listener)


async def live_and_listed(context: Context) -> tuple[list[Node], list[Node]]:
    """As `live_nodes`, and these with those that are about to return after an outage of the metadata store: clients must keep them."""
    live = await context.parts.brokers.live()
    return _reachable(live, context.listener), _reachable(context.parts.brokers.listed(live), context.listener)


def _reachable(records: list[BrokerRecord], listener: str) -> list[Node]:
    nodes = []
    for record in records:
        endpoint = record.endpoint(listener)
        if endpoint is not None:
            nodes.append(Node(record.broker_id, endpoint.host, endpoint.port, record.rack))
    return nodes


def controller_of(nodes: list[Node], *, own_id: int) -> int:
    """The broker that clients send administration to. Any can do it; the one that answers is certainly alive. -1 if there is none."""
    if any(node.broker_id == own_id for node in nodes):
        return own_id
    return nodes[0].broker_id if nodes else -1
