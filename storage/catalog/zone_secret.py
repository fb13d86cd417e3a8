"""The secret by which the brokers of a cluster know each other (broker/zone_cache). The first one that needs it makes it."""

import base64
import binascii
import os
from typing import Final

import msgspec

from runtime.ids import Entropy
from storage.catalog.records import ATTEMPTS_MAX, decode, encode, given_up, pause, write_one
from storage.errors import Corrupt
from storage.metadata.keys import ZONE_SECRET
from storage.metadata.port import ABSENT, MetadataStore, NotApplied, Put, Record, Unknown

FMT: Final = 1
SECRET_BYTES: Final = 32


class ZoneSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`secret` is SECRET_BYTES random bytes in base64. To replace it, remove the key and restart the brokers."""

    fmt: int = FMT
    secret: str


_decoder = msgspec.json.Decoder(ZoneSecret)


def decode_zone_secret(record: Record) -> bytes:
    """Raise `IncompatibleFormat`, or `Corrupt`."""
    found = decode(_decoder, record.value, known=FMT, path=record.path)
    try:
        secret = base64.b64decode(found.secret, validate=True)
    except binascii.Error as error:
        raise Corrupt(f"not base64: key={record.path!r}") from error
    if len(secret) != SECRET_BYTES:
        raise Corrupt(f"a secret has {SECRET_BYTES} bytes: key={record.path!r} bytes={len(secret)}")
    return secret


async def open_zone_secret(metadata: MetadataStore, *, entropy: Entropy = os.urandom) -> bytes:
    """The cluster's secret, made if there is none: all brokers of one metadata store get the same one.

    Raises `IncompatibleFormat`, `Corrupt`, `Unavailable`, and `OutcomeUnknown` if it may have been made.
    """
    (record,) = await metadata.get_many([ZONE_SECRET])
    if record is not None:
        return decode_zone_secret(record)
    proposal = ZoneSecret(secret=base64.b64encode(entropy(SECRET_BYTES)).decode())
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        # Whatever became of the put, the record that is there decides; a lost reply is read back like a lost race.
        outcome = await write_one(metadata, Put(ZONE_SECRET, encode(proposal), ABSENT))
        (record,) = await metadata.get_many([ZONE_SECRET])
        if record is not None:
            return decode_zone_secret(record)
        if isinstance(outcome, Unknown):
            unknown = outcome
        reason = outcome.reason if isinstance(outcome, Unknown | NotApplied) else "the record vanished"
        await pause(attempt, entropy)
    raise given_up("make the secret of the zone caches", unknown=unknown, reason=reason)
