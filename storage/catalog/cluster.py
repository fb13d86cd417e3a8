"""The identity of a cluster, written by whichever broker is first, and the level of its formats."""

import base64
import contextlib
import os
import uuid
from typing import Final

import msgspec

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from runtime.version import forebay_version
from storage.catalog.records import ATTEMPTS_MAX, decode, encode, given_up, pause, write_one
from storage.errors import IncompatibleFormat
from storage.formats.levels import LEVEL_FIRST, LEVEL_MAX, problem_with, problem_with_announced
from storage.formats.refusal import UNDECODABLE
from storage.metadata.keys import CLUSTER
from storage.metadata.port import ABSENT, MetadataStore, NotApplied, Put, Record, Unknown

FMT: Final = 1


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cluster_id` is 22 characters of base64url, as Kafka writes a UUID.

    `level`: which formats may be written (storage/formats/levels.py). `raising_to`: the level about to hold; brokers that do not know it
    may not register any more. Every release reads `level`, whatever else a later one puts here.
    """

    fmt: int = FMT
    cluster_id: str
    created_at_ms: int
    level: int = LEVEL_FIRST
    raising_to: int | None = None


class _Level(msgspec.Struct):
    level: int


_decoder = msgspec.json.Decoder(ClusterRecord)
_level_decoder = msgspec.json.Decoder(_Level)


def decode_cluster(record: Record, *, level_max: int = LEVEL_MAX) -> ClusterRecord:
    """Raise `IncompatibleFormat`, with words for the operator, if a newer release wrote it or the level is above `level_max`; `Corrupt` for
    what is no such record.
    """
    release = forebay_version()
    with contextlib.suppress(*UNDECODABLE):
        problem = problem_with(_level_decoder.decode(record.value).level, level_max=level_max, release=release)
        if problem is not None:
            raise IncompatibleFormat(f"{problem}: key={record.path!r}")
    try:
        return decode(_decoder, record.value, known=FMT, path=record.path)
    except IncompatibleFormat as error:
        raise IncompatibleFormat(
            f"this cluster was written by a newer forebay than this one ({release}). Use a newer forebay, or another metadata.url. "
            f"Nothing was changed: {error}"
        ) from error


async def read_cluster(metadata: MetadataStore) -> ClusterRecord | None:
    """The cluster's record, or None if there is none. Raises as `decode_cluster` does, and `Unavailable`."""
    (record,) = await metadata.get_many([CLUSTER])
    return None if record is None else decode_cluster(record)


async def open_cluster(
    metadata: MetadataStore, ids: IdSource, clock: Clock, *, entropy: Entropy = os.urandom, level_max: int = LEVEL_MAX
) -> ClusterRecord:
    """The cluster's record, created at `level_max` if there is none: all brokers of one metadata store get the same one.

    Raises `IncompatibleFormat` as `decode_cluster` does, and for a level that is about to be; `Unavailable` if the store does not answer.
    """
    proposal = ClusterRecord(cluster_id=_random_cluster_id(ids), created_at_ms=clock.now_ms(), level=level_max)
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        # Whatever became of the put, the record that is there decides; a lost reply is read back like a lost race.
        outcome = await write_one(metadata, Put(CLUSTER, encode(proposal), ABSENT))
        (record,) = await metadata.get_many([CLUSTER])
        if record is not None:
            found = decode_cluster(record, level_max=level_max)
            problem = problem_with_announced(found.level, found.raising_to, level_max=level_max)
            if problem is not None:
                raise IncompatibleFormat(problem)
            return found
        if isinstance(outcome, Unknown):
            unknown = outcome
        reason = outcome.reason if isinstance(outcome, Unknown | NotApplied) else "the record vanished"
        await pause(attempt, entropy)
    raise given_up("create the cluster record", unknown=unknown, reason=reason)


def _random_cluster_id(ids: IdSource) -> str:
    text = base64.urlsafe_b64encode(uuid.UUID(ids.random_uuid()).bytes).rstrip(b"=").decode()
    # As Kafka's Uuid: an id that begins with a dash would look like an option on a command line.
    return "A" + text[1:] if text.startswith("-") else text
