"""What the HTTP API is given of its broker. Imports nothing of HTTP: a broker that serves none loads none of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.addresses import ClientAddress
from broker.admission import Admission
from broker.cluster.registration import ControlledShutdown
from broker.handlers.log.fetch import Fetch
from broker.handlers.log.produce import WideProduce
from broker.handling.context import BrokerParts
from broker.responses import Responses
from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.cache.blocks import BlockCache
from storage.log.index import EntryPlace
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStore
from storage.vocabulary import PartitionId

if TYPE_CHECKING:
    from broker.zone_cache.peers import ZoneCache


@dataclass(frozen=True, slots=True)
class HttpParts:
    """`address_of` finds the account of a client's address, which its Kafka connections share."""

    parts: BrokerParts
    metadata: MetadataStore
    objects: ObjectStore
    produce: WideProduce
    fetch: Fetch
    controlled_shutdown: ControlledShutdown
    admission: Admission
    responses: Responses
    address_of: Callable[[str], ClientAddress]
    clock: Clock
    telemetry: Telemetry
    nursery: Nursery
    locate: Callable[[PartitionId, int], Awaitable[EntryPlace]]
    objects_uri: str
    """The URL of the object store, without secrets, up to the slash before an object's key."""
    begin_drain: Callable[[float], bool]
    """Begin to leave, unless that has begun, and give clients these seconds. Return whether it has ended."""
    blocks: BlockCache
    zone: "ZoneCache | None"
    """None without `storage.zone_cache`."""
    before_drain: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Called when the broker begins to drain, while it still coordinates."""
