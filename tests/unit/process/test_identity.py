import os

import pytest

from process.identity import check_same, identify_cluster, refusal
from process.settings.errors import EXIT_USAGE, StartError
from process.settings.model import Settings
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.identity import MARKER_KEY, ClusterRecord, Identity, Objects, StoreContents, StoreMarker, StoreOwnership, write_marker
from storage.metadata.memory import MemoryMetadataStore
from storage.objects.memory import MemoryObjectStore
from storage.opening import Stores

SETTINGS = Settings.model_validate(
    {"storage": {"url": "s3://bucket/llog?endpoint=http://s3:9000"}, "metadata": {"url": "oxia://oxia:6648/default"}}
)
OURS, THEIRS = ClusterRecord(cluster_id="OURS", created_at_ms=1), StoreMarker(cluster_id="THEIRS", created_at_ms=2)
CASES = [
    (StoreOwnership.ANOTHERS, StoreContents(OURS, THEIRS), ["THEIRS", "OURS", MARKER_KEY]),
    (StoreOwnership.LOST_METADATA, StoreContents(None, THEIRS), ["THEIRS", "no cluster", MARKER_KEY]),
    (StoreOwnership.GONE, StoreContents(OURS, None, named="wal/x"), ["OURS", "wal/x", "--accept-new-store"]),
    (
        StoreOwnership.STRANGE,
        StoreContents(None, None, objects=Objects.STRANGE, strange="wal/y"),
        ["no cluster", "wal/y", "--accept-new-store"],
    ),
]


@pytest.mark.parametrize(("verdict", "found", "named"), CASES)
def test_a_refusal_is_one_line_with_both_urls_what_was_found_and_the_fix(
    verdict: StoreOwnership, found: StoreContents, named: list[str]
) -> None:
    text = refusal(Identity(None, verdict, found), SETTINGS, accept_new_store=False)

    assert "\n" not in text
    for part in [*named, SETTINGS.storage.url, SETTINGS.metadata.url, "Correct "]:
        assert part in text


def test_all_refusals_have_their_words() -> None:
    assert {verdict for verdict, _, _ in CASES} == {verdict for verdict in StoreOwnership if verdict.is_refusal}


@pytest.mark.parametrize(("verdict", "found"), [case[:2] for case in CASES[:2]])
def test_who_accepts_in_vain_is_told_so(verdict: StoreOwnership, found: StoreContents) -> None:
    assert "--accept-new-store does not apply" in refusal(Identity(None, verdict, found), SETTINGS, accept_new_store=True)
    assert "--accept-new-store" not in refusal(Identity(None, verdict, found), SETTINGS, accept_new_store=False)


async def test_what_belongs_together_is_let_through_and_what_does_not_is_a_start_error() -> None:
    clock = SystemClock()
    ids = IdSource(clock=clock, entropy=os.urandom)
    stores = Stores(MemoryMetadataStore(clock=clock), MemoryObjectStore(clock=clock))
    await check_same(stores, SETTINGS)
    cluster = await identify_cluster(stores, SETTINGS, ids, clock, accept_new_store=False)
    again = await identify_cluster(stores, SETTINGS, ids, clock, accept_new_store=False)
    await check_same(stores, SETTINGS)
    others = MemoryObjectStore(clock=clock)
    await write_marker(others, OURS)
    mixed = Stores(stores.metadata, others)

    assert again == cluster
    for refused in (identify_cluster(mixed, SETTINGS, ids, clock, accept_new_store=True), check_same(mixed, SETTINGS)):
        with pytest.raises(StartError, match=f"cluster OURS.*cluster {cluster.cluster_id}") as raised:
            await refused
        assert raised.value.exit_code == EXIT_USAGE
