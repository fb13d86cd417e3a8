"""Raising the format level (docs/internals/adr/0017-a-format-gate.md): announce, read the registered brokers, raise.

A broker registers first and reads the level then, from a state that has its own record. The raiser announces first and then
reads the registered brokers, with a sentinel. So either the raiser sees the broker, or the broker sees the announcement.
"""

import os
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from runtime.ids import Entropy
from storage.catalog.brokers import BrokerRecord, decode_broker, read_live
from storage.catalog.identity import ClusterRecord, decode_cluster
from storage.catalog.records import ATTEMPTS_MAX, encode, given_up, pause, write_one
from storage.errors import NotFound
from storage.formats.levels import LEVEL_MAX, KnownBy, problem_with_raising
from storage.metadata.keys import CLUSTER
from storage.metadata.port import MetadataStore, OpResult, Put, Session, Unknown

SESSION_TIMEOUT_MS: Final = 10_000


class Raising(NamedTuple):
    """The outcome of raising. `problem` says why the level is not the one asked for; None if it is."""

    before: int
    level: int
    brokers: tuple[KnownBy, ...]
    problem: str | None


async def raise_level(
    metadata: MetadataStore, target: int | None = None, *, level_max: int = LEVEL_MAX, entropy: Entropy = os.urandom
) -> Raising:
    """Raise the cluster's level to `target`, or as far as this release knows; to the level in force withdraws what was announced.

    Raises `NotFound` (no cluster), `Unavailable`, `OutcomeUnknown` (ask again), `IncompatibleFormat`. Cancelled, or killed: it may still be
    announced, and brokers that do not know the level do not start until somebody calls this again.
    """
    wanted = level_max if target is None else target
    session = await metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    try:
        return await _raise(metadata, session, wanted, level_max, entropy)
    finally:
        await session.close()


async def _raise(metadata: MetadataStore, session: Session, wanted: int, level_max: int, entropy: Entropy) -> Raising:
    first, _ = await _read(metadata, level_max)
    problem = problem_with_raising(wanted, level=first.level, level_max=level_max, brokers=())
    if problem is not None:
        return Raising(first.level, first.level, (), problem)

    def announced(record: ClusterRecord) -> ClusterRecord:
        return msgspec.structs.replace(record, raising_to=wanted if wanted > record.level else None)

    for attempt in range(ATTEMPTS_MAX):
        found, version = await _change(metadata, announced, level_max, entropy)
        brokers = tuple(_known_by(decode_broker(record)) for record in await read_live(metadata, session, number=attempt))
        if found.raising_to is None:
            return Raising(first.level, found.level, brokers, None)
        problem = problem_with_raising(wanted, level=found.level, level_max=level_max, brokers=brokers)
        if problem is not None:
            await _change(metadata, _withdrawn, level_max, entropy)
            return Raising(first.level, found.level, brokers, problem)
        # At the version of the announcement: if that moved, the brokers that were seen may not be all.
        raised = msgspec.structs.replace(found, level=wanted, raising_to=None)
        outcome = await write_one(metadata, Put(CLUSTER, encode(raised), version))
        if isinstance(outcome, OpResult) and outcome.version is not None:
            return Raising(first.level, wanted, brokers, None)
        await pause(attempt, entropy)
    raise given_up(f"raise the format level to {wanted}", unknown=Unknown("perhaps raised"), reason="")


async def _change(
    metadata: MetadataStore, change: Callable[[ClusterRecord], ClusterRecord], level_max: int, entropy: Entropy
) -> tuple[ClusterRecord, int]:
    """What `change` makes of the cluster's record, put by CAS, and its version."""
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        record, version = await _read(metadata, level_max)
        changed = change(record)
        outcome = await write_one(metadata, Put(CLUSTER, encode(changed), version))
        if isinstance(outcome, OpResult):
            if outcome.version is not None:
                return changed, outcome.version
            reason = "it changed each time"
        else:
            unknown = outcome if isinstance(outcome, Unknown) else unknown
            reason = outcome.reason
        await pause(attempt, entropy)
    raise given_up("change the cluster's record", unknown=unknown, reason=reason)


async def _read(metadata: MetadataStore, level_max: int) -> tuple[ClusterRecord, int]:
    (record,) = await metadata.get_many([CLUSTER])
    if record is None:
        raise NotFound("there is no cluster in this metadata store: start a broker first")
    return decode_cluster(record, level_max=level_max), record.version


def _withdrawn(record: ClusterRecord) -> ClusterRecord:
    return msgspec.structs.replace(record, raising_to=None)


def _known_by(record: BrokerRecord) -> KnownBy:
    address = str(record.listeners[0]) if record.listeners else "no listener"
    return KnownBy(record.broker_id, address, record.version, record.level_max)
