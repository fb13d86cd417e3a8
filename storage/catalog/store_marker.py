"""The object that says whose an object store is: `forebay-cluster.json`, put before anything else of a cluster is, and never changed."""

from typing import Final

import msgspec

from storage.catalog.cluster import ClusterRecord
from storage.catalog.records import decode, encode
from storage.errors import AlreadyExists, Corrupt, EndsEarly, NotFound, OutcomeUnknown
from storage.objects.naming import MARKER
from storage.objects.port import ObjectStore

FMT: Final = 1
KEY: Final = MARKER
SIZE_BYTES_MAX: Final = 4_096


class StoreMarker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`created_at_ms` is the cluster's: all brokers of a cluster put the same bytes."""

    fmt: int = FMT
    cluster_id: str
    created_at_ms: int


_decoder = msgspec.json.Decoder(StoreMarker)


def decode_marker(data: bytes, *, path: str) -> StoreMarker:
    """Raise `IncompatibleFormat`, or `Corrupt` for what is no marker."""
    return decode(_decoder, data, known=FMT, path=path)


async def read_marker(objects: ObjectStore) -> StoreMarker | None:
    """None if there is none. Raises `Unavailable`, `IncompatibleFormat`, and `Corrupt` for an object of that name that is none of ours."""
    try:
        size_bytes = (await objects.stat(KEY)).size_bytes
        if not 0 < size_bytes <= SIZE_BYTES_MAX:
            raise Corrupt(f"not the marker of a cluster: key={KEY!r} size_bytes={size_bytes}")
        return decode_marker(bytes(await objects.get_range(KEY, 0, size_bytes)), path=KEY)
    except NotFound:
        return None


async def bears_marker(objects: ObjectStore, cluster: ClusterRecord) -> bool:
    """Whether the bytes that a broker of `cluster` puts begin what is there: one request. Raises `Unavailable`."""
    expected = encode(_marker_of(cluster))
    try:
        return await objects.get_range(KEY, 0, len(expected)) == expected
    except (NotFound, EndsEarly):
        return False


async def write_marker(objects: ObjectStore, cluster: ClusterRecord) -> StoreMarker:
    """Put the marker of `cluster` if there is none, and return the one that is there, which may be another's.

    Raises `OutcomeUnknown` if it may be there and cannot be seen: ask again.
    """
    marker = _marker_of(cluster)
    unknown: OutcomeUnknown | None = None
    try:
        await objects.put_if_absent(KEY, [encode(marker)])
    except AlreadyExists:
        pass
    except OutcomeUnknown as error:
        unknown = error
    else:
        return marker
    found = await read_marker(objects)
    if found is None:
        raise unknown or OutcomeUnknown(f"the marker of a cluster vanished while it was looked at: key={KEY!r}")
    return found


def _marker_of(cluster: ClusterRecord) -> StoreMarker:
    return StoreMarker(cluster_id=cluster.cluster_id, created_at_ms=cluster.created_at_ms)
