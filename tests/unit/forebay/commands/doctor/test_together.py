import pytest

from forebay.commands.doctor.finding import FindingStatus
from forebay.commands.doctor.run import of_clock, of_identity
from process.settings.model import Settings
from storage.catalog.identity import ClusterRecord, Objects, StoreContents, StoreMarker

OURS = ClusterRecord(cluster_id="ours", created_at_ms=1)
SETTINGS = Settings()


def marker(cluster_id: str) -> StoreMarker:
    return StoreMarker(cluster_id=cluster_id, created_at_ms=1)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (StoreContents(OURS, marker("ours")), FindingStatus.OK, "those of cluster ours"),
        (StoreContents(None, None), FindingStatus.OK, "no cluster has used them yet"),
        (StoreContents(OURS, None, named="wal/a", objects=Objects.OURS), FindingStatus.OK, "the next start marks the object store"),
        (StoreContents(OURS, marker("theirs")), FindingStatus.FAILED, "the object store of cluster theirs"),
        (StoreContents(None, marker("theirs")), FindingStatus.FAILED, "holds no cluster"),
        (StoreContents(OURS, None, named="wal/a"), FindingStatus.FAILED, "--accept-new-store goes on without them"),
        (StoreContents(OURS, None, objects=Objects.STRANGE, strange="wal/b"), FindingStatus.FAILED, "objects like wal/b"),
    ],
)
def test_whose_the_stores_are_is_judged_as_a_start_would(found: StoreContents, verdict: FindingStatus, words: str) -> None:
    finding = of_identity(found, SETTINGS)

    assert finding.verdict is verdict
    assert words in finding.detail


@pytest.mark.parametrize(
    ("ahead_ms", "verdict", "words"),
    [
        (0, FindingStatus.OK, "agrees"),
        (-2_499, FindingStatus.OK, "agrees"),
        (3_000, FindingStatus.OK, "3.0 s ahead of"),
        (5_000, FindingStatus.WARNING, "5.0 s ahead of"),
        (-900_000, FindingStatus.WARNING, "900.0 s behind"),
        (None, FindingStatus.SKIPPED, "removed meanwhile"),
    ],
)
def test_a_clock_that_differs_is_a_warning_from_where_a_broker_warns(ahead_ms: int | None, verdict: FindingStatus, words: str) -> None:
    finding = of_clock("clock of the object store", ahead_ms)

    assert finding.verdict is verdict
    assert words in finding.detail
