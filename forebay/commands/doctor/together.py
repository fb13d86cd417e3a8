"""Whether both stores are of one cluster, and tell the time that this machine does: what only shows beside each other."""

from functools import partial
from typing import Final

from forebay.commands.doctor.finding import Checks, Finding, failed, ok, skipped, warning
from process.identity import older, refusal
from process.settings.model import Settings
from process.store_clocks import AGREES_MS, DIFFERS_MS, MetadataClock, ObjectClock, Timed
from runtime.clock import Clock
from runtime.ids import IdSource
from storage.catalog.brokers import BROKER_ID_MAX
from storage.catalog.collections import CollectionsRecord, NewerStore, WentBack, read_collections
from storage.catalog.identity import Identity, StoreContents, judge, look
from storage.opening import Stores

BELONG: Final = "both stores"
CLOCKS: Final = {"object_store": "clock of the object store", "metadata": "clock of the metadata store"}
AGE: Final = "age of the metadata"
LOOK_S: Final = 20.0
SHOWN_MAX: Final = 3


def of_identity(found: StoreContents, settings: Settings) -> Finding:
    """PURE. As a start without --accept-new-store would judge."""
    verdict = judge(found, accept_new_store=False)
    if verdict.is_refusal:
        return failed(BELONG, refusal(Identity(None, verdict, found), settings, accept_new_store=False))
    if found.cluster is None:
        return ok(BELONG, "no cluster has used them yet; the first start begins one")
    if found.marker is None:
        return ok(BELONG, f"the metadata are those of cluster {found.cluster.cluster_id}; the next start marks the object store as its own")
    return ok(BELONG, f"they are those of cluster {found.cluster.cluster_id}")


def of_clock(check: str, ahead_ms: int | None) -> Finding:
    """PURE. `ahead_ms`: how far this machine's clock is ahead of the store's; None if that cannot be measured now."""
    if ahead_ms is None:
        return skipped(check, "what was put to look at it was removed meanwhile")
    if abs(ahead_ms) < AGREES_MS:
        return ok(check, "it agrees with this machine's")
    way = "ahead of" if ahead_ms > 0 else "behind"
    said = f"this machine's clock is {abs(ahead_ms) / 1_000:.1f} s {way} it: set the one that is wrong, e.g. by NTP"
    return warning(check, said) if abs(ahead_ms) >= DIFFERS_MS else ok(check, said)


def of_age(found: WentBack | None, known: CollectionsRecord, settings: Settings) -> Finding:
    """PURE. `found`: what the object store has seen that the metadata do not know."""
    if found is not None:
        return failed(AGE, older(found, settings))
    if known.missing:
        names = ", ".join(one.key for one in known.missing[:SHOWN_MAX])
        said = f"live entries name {len(known.missing)} objects that are not there, such as {names}. Nothing is deleted meanwhile"
        return failed(AGE, f"{said}. Bring them back, or accept each that is lost for good: forebay storage accept-lost KEY")
    return ok(AGE, "the metadata know all that the object store has seen")


async def look_at_both(opened: Stores, settings: Settings, checks: Checks, *, clock: Clock) -> None:
    """`opened` has both stores of the settings, or where there is none yet an empty one in its place."""

    async def identity() -> Finding:
        return of_identity(await look(opened.metadata, opened.objects), settings)

    async def time(check: str, timed: Timed) -> Finding:
        return of_clock(check, await timed.ahead_ms())

    async def age() -> Finding:
        found = await NewerStore(opened.metadata, opened.objects, IdSource(clock=clock)).look()
        return of_age(found, await read_collections(opened.metadata), settings)

    await checks.run(BELONG, identity, within_s=LOOK_S)
    await checks.run(AGE, age, within_s=LOOK_S)
    # No broker has this id: nobody else's probe has the same name.
    timed: dict[str, Timed] = {"object_store": ObjectClock(opened.objects, lambda: BROKER_ID_MAX, clock)}
    if opened.times is not None:
        timed["metadata"] = MetadataClock(opened.metadata, opened.times, lambda: BROKER_ID_MAX, clock)
    for name, one in timed.items():
        await checks.run(CLOCKS[name], partial(time, CLOCKS[name], one), within_s=LOOK_S)
