"""Which offsets of which topics `forebay topic consume` reads. Every function raises `ClientFailed`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from forebay.commands.topic.administration import bounds, look_up_topic, offsets_at
from forebay.commands.topic.starting import AtTime, OffsetBounds, StartingPoint, Stop, offsets, stops
from forebay.kafka_client.connection import ClusterConnection, Partition
from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed, unknown_partition

INTERNAL: str = "__"
"""Topics whose names begin so are a cluster's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """From `offsets` on, before `stops` where there are any. `records` counts the offsets that are there now."""

    offsets: Mapping[Partition, int]
    stops: Mapping[Partition, int]
    records: int


def topics_like(connection: ClusterConnection, admin: AdminClient, patterns: Sequence[re.Pattern[str]]) -> list[str]:
    """The topics there are now, by name."""
    there = connection.metadata(admin).topics
    found = sorted(name for name in there if not name.startswith(INTERNAL) and any(pattern.search(name) for pattern in patterns))
    if not found:
        raise ClientFailed(f"None of {len(there):,} topics is like that. List them: forebay topic list", exit_code=EXIT_NOT_FOUND)
    return found


def extent(
    connection: ClusterConnection,
    admin: AdminClient,
    topics: Iterable[str],
    start: StartingPoint,
    stop: Stop | None,
    *,
    partition: int | None,
) -> Extent:
    """The extent of one partition of each topic, or of all partitions."""
    first: dict[Partition, int] = {}
    last: dict[Partition, int] = {}
    records = 0
    for topic in topics:
        there = _bounds_of(connection, admin, topic, partition)
        begin = offsets(start, topic, there, at_time=_at_time(connection, admin, topic, there, start))
        end = {} if stop is None else stops(stop, there, at_time=_at_time(connection, admin, topic, there, stop))
        first |= {(topic, at): offset for at, offset in begin.items()}
        last |= {(topic, at): offset for at, offset in end.items()}
        records += sum(max(0, min(end.get(at, there[at].end), there[at].end) - begin[at]) for at in there)
    return Extent(offsets=first, stops=last, records=records)


def stops_of(
    connection: ClusterConnection, admin: AdminClient, topic: str, stop: Stop, *, partition: int | None
) -> tuple[dict[int, OffsetBounds], dict[int, int]]:
    """The offsets there are now in one partition or all, and where `stop` is in each."""
    there = _bounds_of(connection, admin, topic, partition)
    return there, stops(stop, there, at_time=_at_time(connection, admin, topic, there, stop))


def _bounds_of(connection: ClusterConnection, admin: AdminClient, topic: str, partition: int | None) -> dict[int, OffsetBounds]:
    count = len(look_up_topic(connection, admin, topic).partitions)
    if partition is not None and partition >= count:
        raise unknown_partition(topic, partition, count)
    return bounds(connection, admin, topic, range(count) if partition is None else (partition,))


def _at_time(
    connection: ClusterConnection, admin: AdminClient, topic: str, partitions: Iterable[int], place: StartingPoint
) -> dict[int, int]:
    if not isinstance(place, AtTime):
        return {}
    return offsets_at(connection, admin, topic, dict.fromkeys(partitions, OffsetSpec.for_timestamp(place.timestamp_ms)))
