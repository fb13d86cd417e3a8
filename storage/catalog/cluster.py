"""The identity of a cluster: written once, by whichever broker is first."""

import base64
import os
import uuid
from typing import Final

import msgspec

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from storage.catalog.records import decode, encode
from storage.catalog.writes import ATTEMPTS_MAX, given_up, pause, write_one
from storage.metadata.keys import CLUSTER
from storage.metadata.port import ABSENT, MetadataStore, NotApplied, Put, Unknown

FMT: Final = 1


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster_id` is 22 characters of base64url, as Kafka writes a UUID."""

    fmt: int = FMT
    cluster_id: str
    created_at_ms: int


_decoder = msgspec.json.Decoder(ClusterRecord)


async def open_cluster(metadata: MetadataStore, ids: IdSource, clock: Clock, *, entropy: Entropy = os.urandom) -> ClusterRecord:
    """The cluster's record, created if there is none: all brokers of one metadata store get the same one.

    Raises `IncompatibleFormat` if a newer program wrote it, `Unavailable` if the store does not answer.
    """
    proposal = ClusterRecord(cluster_id=_random_cluster_id(ids), created_at_ms=clock.now_ms())
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        # Whatever became of the put, the record that is there decides; a lost reply is read back like a lost race.
        outcome = await write_one(metadata, Put(CLUSTER, encode(proposal), ABSENT))
        (record,) = await metadata.get_many([CLUSTER])
        if record is not None:
            return decode(_decoder, record.value, known=FMT, path=record.path, describe_newer=_newer)
        if isinstance(outcome, Unknown):
            unknown = outcome
        reason = outcome.reason if isinstance(outcome, Unknown | NotApplied) else "the record vanished"
        await pause(attempt, entropy)
    raise given_up("create the cluster record", unknown=unknown, reason=reason)


def _random_cluster_id(ids: IdSource) -> str:
    text = base64.urlsafe_b64encode(uuid.UUID(ids.random_uuid()).bytes).rstrip(b"=").decode()
    # As Kafka's Uuid: an id that begins with a dash would look like an option on a command line.
    return "A" + text[1:] if text.startswith("-") else text


def _newer(fmt: int, known: int, path: str) -> str:
    return (
        f"this cluster was written by format {fmt}; this forebay knows up to format {known}. "
        f"Use a newer forebay, or another metadata.url. Nothing was changed: key={path!r}"
    )
