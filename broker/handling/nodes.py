"""The live brokers as one listener's clients can reach them."""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from broker.handling.context import Context
from storage.catalog.brokers import ALL_ROLES, BrokerRecord, Role


class Node(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    roles: Collection[Role] = ALL_ROLES

    def has_role(self, role: Role) -> bool:
        return role in self.roles


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
            roles = ALL_ROLES if record.roles is msgspec.UNSET else record.roles
            nodes.append(Node(record.broker_id, endpoint.host, endpoint.port, record.rack, roles))
    return nodes


def controller_of(nodes: list[Node], *, own_id: int) -> int:
    """The broker that clients send administration to: one of the role `admin`, if there is one. The one that answers is certainly alive.
    -1 if there is none.
    """
    able = [node for node in nodes if node.has_role(Role.ADMIN)] or nodes
    if any(node.broker_id == own_id for node in able):
        return own_id
    return able[0].broker_id if able else -1
