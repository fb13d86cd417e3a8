"""Are the stores under a running broker still those of its cluster? Compared with what both bore at the start, since a bucket, a folder or
a namespace may be put in the place of another while they are used (docs/internals/adr/0020-whose-a-store-is.md).

One GET of some 90 bytes and one read of the metadata store for a look. What a store does not answer says nothing of whose it is.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from process.http.health import METADATA, OBJECT_STORE
from process.identity import refusal
from process.settings.model import Settings
from process.settings.notation import without_secrets
from storage.catalog.identity import (
    MARKER_KEY,
    ClusterRecord,
    Identity,
    Objects,
    StoreOwnership,
    bears_marker,
    judge,
    look,
    read_cluster,
    read_marker,
    write_marker,
)
from storage.errors import Corrupt, IncompatibleFormat, StorageError
from storage.objects.requests import CAUSE
from storage.opening import Stores

LOOK_EVERY_S: Final = 10.0
LOOK_AGAIN_S: Final = 1.0
"""Before what was found once is believed."""
LOOK_S: Final = 30.0

EFFECT: Final = "no record is taken or acknowledged any more"
FIX: Final = "stop this broker, put the stores of its cluster back, and start it again"

_log = structlog.get_logger("stores")


class StoreWatch:
    """`on_lost` is called once, with the store that is another's (a name of process/http/health.py) and why."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        cluster: ClusterRecord,
        *,
        on_lost: Callable[[str, str], None],
        look_every_s: float = LOOK_EVERY_S,
        look_again_s: float = LOOK_AGAIN_S,
    ) -> None:
        self._stores = stores
        self._settings = settings
        self._cluster = cluster
        self._on_lost = on_lost
        self._look_every_s, self._look_again_s = look_every_s, look_again_s

    async def run(self) -> None:
        """Until a store is another's, or cancelled."""
        CAUSE.set("marker")
        # A timer is meant: stores do not tell that they were replaced.
        while (problem := await self._problem()) is None or problem != await self._again():  # noqa: ASYNC110
            await asyncio.sleep(self._look_every_s)
        store, cause = problem
        _log.error("store_replaced", store=store, error=cause, effect=EFFECT, fix=FIX)
        self._on_lost(store, cause)

    async def _again(self) -> tuple[str, str] | None:
        await asyncio.sleep(self._look_again_s)
        return await self._problem()

    async def _problem(self) -> tuple[str, str] | None:
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._look()
        except (StorageError, TimeoutError):
            return None  # those who need it report that it does not answer

    async def _look(self) -> tuple[str, str] | None:
        ours, metadata = self._cluster, self._stores.metadata
        cluster = await read_cluster(metadata)
        if cluster is not None and cluster.cluster_id != ours.cluster_id:
            url = without_secrets(self._settings.metadata.url)
            return (
                METADATA,
                f'metadata.url "{url}" was replaced under this broker of cluster {ours.cluster_id}: it holds cluster {cluster.cluster_id}',
            )
        if cluster is not None and await bears_marker(self._stores.objects, ours):
            return None
        try:
            await read_marker(self._stores.objects)
        except (Corrupt, IncompatibleFormat) as error:
            return OBJECT_STORE, f"replaced under a running broker of cluster {ours.cluster_id}: whose it is now cannot be read: {error}"
        found = await look(metadata, self._stores.objects)
        verdict = judge(found, accept_new_store=False)
        if verdict.is_refusal:
            if verdict is not StoreOwnership.LOST_METADATA:
                # A folder that is away for a while holds nothing either: that is a store which fails, and recovers.
                await self._stores.objects.probe()
            said = refusal(Identity(None, verdict, found), self._settings, accept_new_store=False)
            return METADATA if verdict is StoreOwnership.LOST_METADATA else OBJECT_STORE, f"replaced under a running broker: {said}"
        if found.cluster is None:
            url = without_secrets(self._settings.metadata.url)
            return METADATA, f'metadata.url "{url}" was replaced under this broker of cluster {ours.cluster_id}: it holds no cluster'
        if verdict is StoreOwnership.MARK:
            await self._mark(found.objects, found.cluster)
        return None

    async def _mark(self, has: Objects, cluster: ClusterRecord) -> None:
        """The marker alone is gone: without it nobody could tell the next time."""
        await write_marker(self._stores.objects, cluster)
        _log.warning("store_marked_again", cluster_id=cluster.cluster_id, cause=f"{MARKER_KEY} was removed", store_has=has.value)
