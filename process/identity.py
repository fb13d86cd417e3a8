"""Whether the two stores of the settings are those of one cluster, and of one age, in words for the operator."""

import asyncio
from datetime import UTC, datetime
from typing import Final, assert_never

import structlog

from process.settings.errors import EXIT_USAGE, StartError
from process.settings.model import Settings
from process.settings.notation import without_secrets
from runtime.clock import Clock
from runtime.ids import IdSource
from storage.catalog.collections import NewerStore, WentBack
from storage.catalog.collections import accept_older as accept_older_metadata
from storage.catalog.identity import MARKER_KEY, ClusterRecord, Identity, StoreContents, StoreOwnership, identify, read_cluster, read_marker
from storage.errors import StorageError
from storage.opening import Stores

LOOK_S: Final = 5.0

_log = structlog.get_logger("stores")


async def check_age(stores: Stores, settings: Settings, ids: IdSource, clock: Clock, *, accept_older: bool) -> None:
    """Raise `StartError` if the metadata are older than what the object store has seen, unless the operator accepts it.

    Raises what `NewerStore.look` raises.
    """
    found = await NewerStore(stores.metadata, stores.objects, ids).look()
    if found is None:
        return
    if not accept_older:
        raise StartError(older(found, settings), exit_code=EXIT_USAGE)
    kept = await accept_older_metadata(stores.metadata, stores.objects, ids, clock)
    _log.warning(
        "older_metadata_accepted",
        evidence=found.evidence,
        metadata=without_secrets(settings.metadata.url),
        storage=without_secrets(settings.storage.url),
        kept_from=kept.first,
        kept_to=kept.last,
        meaning="records that these metadata do not name cannot be read; their objects stay: forebay storage objects --kept",
    )


def older(found: WentBack, settings: Settings) -> str:
    """PURE: one line, with both times and the fix."""
    known = f"know of nothing deleted after {_time(found.metadata_ms)}" if found.metadata_ms else "know of nothing that was ever deleted"
    return (
        f'metadata.url "{without_secrets(settings.metadata.url)}" is older than storage.url "{without_secrets(settings.storage.url)}": '
        f"the metadata {known}, the object store was written for newer ones at {_time(found.store_ms)}: {found.evidence}. "
        "Nothing was changed. Put the newest metadata back (is this an older copy?). If these are the newest there are, "
        "forebay serve --accept-older-metadata goes on with them, and keeps every object that they do not name"
    )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


async def identify_cluster(stores: Stores, settings: Settings, ids: IdSource, clock: Clock, *, accept_new_store: bool) -> ClusterRecord:
    """The cluster of the stores. Raise `StartError` if they are not one cluster's, and what storage/catalog/identity.py raises."""
    identity = await identify(stores.metadata, stores.objects, ids, clock, accept_new_store=accept_new_store)
    if identity.cluster is None:
        raise StartError(refusal(identity, settings, accept_new_store=accept_new_store), exit_code=EXIT_USAGE)
    if identity.verdict is StoreOwnership.ACCEPTED:
        found = identity.found
        _log.warning(
            "new_store_accepted",
            cluster_id=identity.cluster.cluster_id,
            storage=without_secrets(settings.storage.url),
            metadata=without_secrets(settings.metadata.url),
            store_has=found.objects.value,
            named_by_metadata=found.named,
            strange=found.strange,
            meaning="Records of objects that are not in this store cannot be read; objects of unknown partitions are left alone",
        )
    return identity.cluster


async def check_same(stores: Stores, settings: Settings) -> None:
    """For who only looks: raise `StartError` if the two stores bear the ids of different clusters.

    A store that does not say so within LOOK_S is left to those who need it.
    """
    try:
        async with asyncio.timeout(LOOK_S):
            found = StoreContents(await read_cluster(stores.metadata), await read_marker(stores.objects))
    except (StorageError, TimeoutError):
        return
    if found.cluster is not None and found.marker is not None and found.cluster.cluster_id != found.marker.cluster_id:
        raise StartError(refusal(Identity(None, StoreOwnership.ANOTHERS, found), settings, accept_new_store=False), exit_code=EXIT_USAGE)


def refusal(identity: Identity, settings: Settings, *, accept_new_store: bool) -> str:
    """PURE: one line, with ids, URLs and the fix. The verdict must be a refusal."""
    found = identity.found
    ours = "no cluster" if found.cluster is None else f"cluster {found.cluster.cluster_id}"
    store = f'storage.url "{without_secrets(settings.storage.url)}"'
    metadata = f'metadata.url "{without_secrets(settings.metadata.url)}"'
    in_vain = " --accept-new-store does not apply: the other cluster may be alive." if accept_new_store else ""
    match identity.verdict:
        case StoreOwnership.ANOTHERS:
            return (
                f"{store} is the object store of cluster {_marked(found)}, and {metadata} holds {ours}. "
                "Correct the one that is wrong. To give the object store to another cluster, empty it first, "
                f"{MARKER_KEY} included.{in_vain}"
            )
        case StoreOwnership.LOST_METADATA:
            return (
                f"{store} is the object store of cluster {_marked(found)}, and {metadata} holds no cluster. "
                "Correct metadata.url (another path or namespace?) or bring that cluster's metadata back. To begin a new cluster, "
                f"use another storage.url, or empty this one, {MARKER_KEY} included.{in_vain}"
            )
        case StoreOwnership.GONE:
            return (
                f"{store} holds nothing of {ours}, whose metadata in {metadata} name objects like {found.named}. "
                "Correct storage.url, or bring the objects back. If they are lost for good, --accept-new-store goes on without them."
            )
        case StoreOwnership.STRANGE:
            return (
                f"{store} holds objects like {found.strange} that {metadata} ({ours}) does not know, and no {MARKER_KEY}. "
                "Correct the one that is wrong, or use an empty object store. If no other cluster uses this one, "
                "--accept-new-store takes it."
            )
        case StoreOwnership.SAME | StoreOwnership.MARK | StoreOwnership.ACCEPTED:
            raise AssertionError(f"no refusal: {identity.verdict}")
        case _:
            assert_never(identity.verdict)


def _marked(found: StoreContents) -> str:
    return "unknown" if found.marker is None else found.marker.cluster_id
