"""`explain`: where the first record of a result lies, for people who look into the bucket or the metadata store."""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from broker.http.errors import invalid
from broker.http.parts import HttpParts
from storage.errors import StorageError

EXPLAINED_MAX: Final = 10
INLINE: Final = "inline"


class Placed(msgspec.Struct, frozen=True, omit_defaults=True):
    """With `explain`: the record of the metadata store that names the batches, the object that holds them ("inline": that record itself),
    and where in it. Compaction may move them at any time.
    """

    index_key: str | UnsetType = UNSET
    object_uri: str | UnsetType = UNSET
    byte_offset: int | UnsetType = UNSET
    byte_length: int | UnsetType = UNSET


P = TypeVar("P", bound=Placed)


def check_explained(partitions: Sequence[object]) -> None:
    """Raise `HttpError` for more than are explained at a time."""
    if len(partitions) > EXPLAINED_MAX:
        raise invalid(f"explain: at most {EXPLAINED_MAX} partitions are explained at a time, and these are {len(partitions)}")


async def explained(parts: HttpParts, result: P, topic: str, partition: int, offset: int) -> P:
    """The result with its place, which costs a read of the control record; as it was if that cannot be read."""
    try:
        found = (await parts.parts.topics.lookup([topic])).get(topic)
        if found is None:
            return result
        place = await parts.locate(found.partition(partition), offset)
    except StorageError:
        return result
    uri = INLINE if place.object_key is None else f"{parts.objects_uri}{place.object_key}"
    return msgspec.structs.replace(
        result, index_key=place.index_key, object_uri=uri, byte_offset=place.byte_offset, byte_length=place.byte_length
    )
