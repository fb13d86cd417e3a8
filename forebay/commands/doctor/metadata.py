"""The metadata store: can it be reached, whose is it, do conditions and sessions hold, how long does a write take.

All that is written is ephemeral, so that it goes also when this process is killed.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.commands.doctor.finding import Checks, Finding, FindingStatus, failed, ok, skipped, warning
from process.settings.errors import EXIT_FAILED, StartError
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.version import forebay_version
from storage.catalog.brokers import BrokerRecord, decode_broker
from storage.catalog.identity import ClusterRecord, decode_cluster
from storage.catalog.records import write_one
from storage.errors import Unavailable
from storage.formats.levels import LEVEL_MAX, problem_with_announced
from storage.metadata import keys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, OpResult, Put, Session, Status

STORE: Final = "metadata store"
CLUSTER: Final = "metadata: cluster"
BROKERS: Final = "metadata: brokers"
CONDITIONS: Final = "metadata: conditions"
SESSIONS: Final = "metadata: sessions"
LATENCY: Final = "metadata: latency"

OF_STORE: Final = (CLUSTER, BROKERS, CONDITIONS, SESSIONS, LATENCY)

STEP_S: Final = 10.0
SESSION_TIMEOUT_MS: Final = 10_000
WRITES: Final = 5
SLOW_S: Final = 0.5
SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is known of the cluster in the metadata store. `cluster_id` None: there is none yet, if `is_known`."""

    is_known: bool = False
    cluster_id: str | None = None
    brokers: tuple[BrokerRecord, ...] = ()


class Conditions(NamedTuple):
    """The outcomes of five requests on one key, each with a condition: put if absent, put if absent again, put at the version of the first,
    put at that version again, read.
    """

    created: OpResult
    created_again: OpResult
    replaced: OpResult
    replaced_again: OpResult
    found: bytes | None


def of_cluster(record: ClusterRecord | None) -> Finding:
    """Raise `StartError` where `serve` does."""
    if record is None:
        return ok(CLUSTER, "there is none yet: the first broker would make it")
    if (problem := problem_with_announced(record.level, record.raising_to, level_max=LEVEL_MAX)) is not None:
        raise StartError(problem, exit_code=EXIT_FAILED)
    return ok(CLUSTER, f"{record.cluster_id}, format level {record.level}; this forebay ({forebay_version()}) knows up to {LEVEL_MAX}")


def of_brokers(brokers: Sequence[BrokerRecord]) -> Finding:
    if not brokers:
        return ok(BROKERS, "none is registered")
    shown = [f"{one.broker_id} {_place_of(one)} (forebay {one.version})" for one in brokers[:SHOWN_MAX]]
    more = [f"and {len(brokers) - SHOWN_MAX} more"] if len(brokers) > SHOWN_MAX else []
    return ok(BROKERS, f"{len(brokers)} registered: {'; '.join([*shown, *more])}")


def _place_of(broker: BrokerRecord) -> str:
    return f"at {', '.join(map(str, broker.kafka_listeners))}" if broker.kafka_listeners else "without a listener: a program that appends"


def of_conditions(seen: Conditions) -> Finding:
    refused = Status.UNEXPECTED_VERSION
    wrong = [
        what
        for what, is_so in (
            ("a put of an absent key was refused", seen.created.version is None),
            ("a put of a key that is there was not refused, though it had to be absent", seen.created_again.status is not refused),
            ("a put at the right version was refused", seen.replaced.version is None),
            ("a put at an old version was not refused", seen.replaced_again.status is not refused),
            ("the last write that was taken is not what is read", seen.found != b"2"),
        )
        if is_so
    ]
    if wrong:
        return failed(
            CONDITIONS, f"{'; '.join(wrong)}. Records would be lost. Use a store that keeps to conditions: Oxia, or a SQLite file"
        )
    return ok(CONDITIONS, "a second writer, and one that knows an old version, are refused")


def of_session(left: bytes | None) -> Finding:
    if left is not None:
        return failed(SESSIONS, "a record outlived the session it belonged to: brokers that died would stay listed")
    return ok(SESSIONS, "begun and ended; its record went with it")


def of_latency(seconds: Sequence[float]) -> Finding:
    median_s = statistics.median(seconds)
    known = f"{len(seconds)} writes one after the other: median {median_s * 1000:.1f} ms, slowest {max(seconds) * 1000:.1f} ms"
    if median_s > SLOW_S:
        return warning(LATENCY, f"{known}. Every acknowledgement waits for one: use a store that is nearer, or a faster disk.")
    return ok(LATENCY, known)


class MetadataChecks:
    """Checks an open metadata store."""

    def __init__(self, store: MetadataStore, checks: Checks, *, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._checks = checks
        self._clock = clock
        name = ids.next_ulid()
        self._key, self._other = keys.doctor_probe(name), keys.doctor_probe(f"{name}-w")
        self._cluster: ClusterRecord | None = None
        self._brokers: tuple[BrokerRecord, ...] = ()

    async def run(self) -> Cluster:
        """All of them, one after the other."""
        knows_cluster = await self._checks.run(CLUSTER, self._look_at_cluster, within_s=STEP_S) is FindingStatus.OK
        await self._checks.run(BROKERS, self._look_at_brokers, within_s=STEP_S)
        await self._write()
        cluster_id = None if self._cluster is None else self._cluster.cluster_id
        return Cluster(knows_cluster, cluster_id, self._brokers)

    async def _look_at_cluster(self) -> Finding:
        (record,) = await self._store.get_many([keys.CLUSTER])
        self._cluster = None if record is None else decode_cluster(record)
        return of_cluster(self._cluster)

    async def _look_at_brokers(self) -> Finding:
        start, end = keys.brokers()
        self._brokers = tuple([decode_broker(record) async for record in self._store.range_scan(start, end)])
        return of_brokers(self._brokers)

    async def _write(self) -> None:
        session: Session | None = None

        async def conditions() -> Finding:
            nonlocal session
            session = await self._store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
            return of_conditions(await self._try_conditions(session))

        async def ending() -> Finding:
            assert session is not None, "begun"
            await session.close()
            (left,) = await self._store.get_many([self._key])
            return of_session(None if left is None else left.value)

        await self._checks.run(CONDITIONS, conditions, within_s=STEP_S)
        if session is None:
            for check in (SESSIONS, LATENCY):
                self._checks.add(skipped(check, "no session could be begun"))
            return
        await self._checks.run(SESSIONS, ending, within_s=STEP_S)
        await self._checks.run(LATENCY, self._look_at_latency, within_s=STEP_S)

    async def _try_conditions(self, session: Session) -> Conditions:
        created = await self._put(self._key, b"1", ABSENT, session)
        created_again = await self._put(self._key, b"0", ABSENT, session)
        version = created.version if created.version is not None else ABSENT
        replaced = await self._put(self._key, b"2", version, session)
        replaced_again = await self._put(self._key, b"3", version, session)
        (record,) = await self._store.get_many([self._key])
        return Conditions(created, created_again, replaced, replaced_again, None if record is None else record.value)

    async def _look_at_latency(self) -> Finding:
        seconds = []
        for _ in range(WRITES):
            began_s = self._clock.monotonic_s()
            # In one write, as brokers do without traffic: there is no moment at which a kill would leave it behind.
            outcome = await self._store.write([Put(self._other, b"", None), Delete(self._other)])
            if not isinstance(outcome, Applied):
                raise Unavailable(outcome.reason)
            seconds.append(self._clock.monotonic_s() - began_s)
        return of_latency(seconds)

    async def _put(self, key: Key, value: bytes, expected_version: int, session: Session) -> OpResult:
        outcome = await write_one(self._store, Put(key, value, expected_version, session=session.session_id))
        if not isinstance(outcome, OpResult):
            raise Unavailable(outcome.reason)
        return outcome
