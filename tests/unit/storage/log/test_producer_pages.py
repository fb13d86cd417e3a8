"""Producer states in pages: whatever leaves the manifest and comes back, a decision is what it would be with all of it at hand."""

import dataclasses
import functools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.formats.manifest import Manifest, PageRef, ProducerBatch, ProducerState, decode_manifest, decode_page, encode
from storage.limits import METADATA_VALUE_BYTES_MAX, PRODUCER_PAGES_MAX, PRODUCERS_HOT_BYTES_MAX, WRITE_REQUEST_BYTES_MAX
from storage.log.decide import FORGOTTEN_AFTER, Decision, Outcome, Writer, decide
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.producer_pages import fitting, pages_needed
from storage.vocabulary import ObjectId
from tests.unit.storage.log.test_decide import Batch, Reference

OBJECT = ObjectId("01J00000000000000000000000")
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


@dataclass
class Partition:
    """A manifest and the pages that were ever written, committed to by one broker that caches nothing."""

    manifest: Manifest = field(default_factory=Manifest)
    written: dict[str, dict[int, ProducerState]] = field(default_factory=dict)
    limits: LogLimits = DEFAULT_LIMITS
    commits: int = 0
    now_ms: int = NOW_MS

    def commit(self, *claims: Batch) -> Decision:
        assert fitting(self.manifest, claims, self.limits) == len(claims)
        self.commits += 1
        for place, one in enumerate(claims):
            one.position = place * one.size_bytes
        decision = decide(
            self.manifest,
            claims,
            object_id=OBJECT,
            writer=Writer(7, self.commits, 1),
            now_ms=self.now_ms,
            limits=self.limits,
            pages={name: self.written[name] for name in pages_needed(self.manifest, claims, self.limits)},
            version=self.commits,
        )
        if decision.manifest is not None:
            for new in decision.pages:
                value = encode(new.page)
                assert len(value) <= METADATA_VALUE_BYTES_MAX
                self.written[new.name] = decode_page(value, path="test")
            value = encode(decision.manifest)
            assert len(value) <= DEFAULT_LIMITS.manifest_bytes_max
            self.manifest = decode_manifest(value, path="test")
            self.check()
        return decision

    def commit_all(self, claims: list[Batch]) -> list[Decision]:
        """In as many commits as it takes."""
        decisions = []
        while claims:
            count = fitting(self.manifest, claims, self.limits)
            decisions.append(self.commit(*claims[:count]))
            claims = claims[count:]
        return decisions

    def check(self) -> None:
        """Pages are in the order of ids, do not overlap, exist, and hold what their references say."""
        bound = -1
        for place, ref in enumerate(self.manifest.pages):
            page = self.written[ref.name]
            following = self.manifest.pages[place + 1].first_pid if place + 1 < len(self.manifest.pages) else 2**63
            assert bound < ref.first_pid <= min(page)
            assert max(page) == ref.last_pid < following
            assert ref.newest_ms == max(state.batches[-1].at_ms for state in page.values())
            bound = ref.last_pid

    @property
    def remembered(self) -> set[int]:
        return set(self.manifest.producers).union(*(self.written[ref.name] for ref in self.manifest.pages))


def claim(producer_id: int, first_seq: int, count: int = 1) -> Batch:
    return Batch(producer_id=producer_id, producer_epoch=0, first_seq=first_seq, record_count=count)


SMALL = LogLimits(producers_hot_max=2, producer_page_bytes_max=900, producer_pages_written_max=2, producers_per_commit_max=6)
"""Two producers stay hot, a page holds about three, one commit touches two pages."""


produced = st.builds(
    Batch,
    producer_id=st.sampled_from([-1, *range(0, 120, 10)]),
    producer_epoch=st.integers(0, 1),
    first_seq=st.integers(0, 4),
    record_count=st.integers(1, 2),
)


@settings(max_examples=300)
@given(commits=st.lists(st.lists(produced, min_size=1, max_size=14), max_size=25))
def test_any_sequence_of_commits_decides_as_if_no_state_ever_left_the_manifest(commits: list[list[Batch]]) -> None:
    partition, reference = Partition(limits=SMALL), Reference({})
    for claims in commits:
        verdicts = [tuple(verdict) for decision in partition.commit_all(list(claims)) for verdict in decision.verdicts]

        assert verdicts == [reference.append(one.producer_id, one.producer_epoch, one.first_seq, one.record_count) for one in claims]


def test_the_examples_above_reach_pages_that_split_and_commits_that_are_carried() -> None:
    partition = Partition(limits=SMALL)
    decisions = partition.commit_all([claim(producer_id, 0) for producer_id in range(40)])

    assert len(decisions) > 1
    assert len(partition.manifest.pages) > 3
    assert len(partition.manifest.producers) <= 2
    assert partition.remembered == set(range(40))
    again = partition.commit_all([claim(producer_id, 0) for producer_id in range(40)])
    assert {verdict.outcome for decision in again for verdict in decision.verdicts} == {Outcome.DUPLICATE}


def test_a_thousand_producers_fit_one_commit_and_one_request() -> None:
    partition = Partition()
    for sequence in range(6):
        decision = partition.commit(*[claim(producer_id, sequence) for producer_id in range(10_000, 11_000)])

        assert {verdict.outcome for verdict in decision.verdicts} == {Outcome.APPENDED}
        assert sum(len(encode(new.page)) for new in decision.pages) < WRITE_REQUEST_BYTES_MAX * 3 // 4
    assert len(partition.remembered) == 1_000
    assert len(partition.manifest.pages) <= 10


def test_a_commit_touches_few_pages_and_carries_the_rest() -> None:
    partition = Partition()
    for begin in range(0, 4_000, 1_000):
        partition.commit(*[claim(producer_id, 0) for producer_id in range(begin, begin + 1_000)])
    for sequence in range(1, 5):
        for begin in range(0, 4_000, 500):
            partition.commit_all([claim(producer_id, sequence) for producer_id in range(begin, begin + 500)])
    assert len(partition.manifest.pages) > 2 * DEFAULT_LIMITS.producer_pages_written_max

    scattered = [claim(producer_id, 5) for producer_id in range(0, 4_000, 4)]
    decisions = partition.commit_all(scattered)

    assert len(decisions) > 1
    assert all(len(decision.pages) <= DEFAULT_LIMITS.producer_pages_written_max + 2 for decision in decisions)
    assert {verdict.outcome for decision in decisions for verdict in decision.verdicts} == {Outcome.APPENDED}


def test_more_producers_than_one_commit_takes_are_carried() -> None:
    claims = [claim(producer_id, 0) for producer_id in range(DEFAULT_LIMITS.producers_per_commit_max + 10)]

    assert fitting(Manifest(), claims, DEFAULT_LIMITS) == DEFAULT_LIMITS.producers_per_commit_max
    assert fitting(Manifest(), [dataclasses.replace(one, producer_id=-1) for one in claims], DEFAULT_LIMITS) == len(claims)


def test_a_hot_state_wins_over_the_one_that_its_page_still_has() -> None:
    page = {5: ProducerState(0, (ProducerBatch(0, 0, 10, NOW_MS),))}
    hot = {5: ProducerState(0, (ProducerBatch(0, 0, 10, NOW_MS), ProducerBatch(1, 1, 20, NOW_MS)))}
    manifest = Manifest(sequence_counter=30, producers=hot, pages=(PageRef("1-7-1-1-0", 5, 5, NOW_MS),))
    partition = Partition(manifest, {"1-7-1-1-0": page})

    assert partition.commit(claim(5, 1)).verdicts[0] == (Outcome.DUPLICATE, 20)
    assert partition.commit(claim(5, 2)).verdicts[0] == (Outcome.APPENDED, 30)


def test_a_producer_beyond_the_greatest_id_of_its_page_is_unknown_without_a_read() -> None:
    partition = Partition(limits=SMALL)
    for producer_id in range(4):
        partition.commit(claim(producer_id, 0))
    hot = next(iter(partition.manifest.producers))
    alone = dataclasses.replace(partition, manifest=Manifest(pages=partition.manifest.pages))

    assert pages_needed(alone.manifest, [claim(1_000, 0)], SMALL) == []
    assert pages_needed(alone.manifest, [claim(0, 0)], SMALL) != []
    assert hot >= 0


def test_producers_that_appended_nothing_for_two_days_are_forgotten_hot_or_not() -> None:
    partition = Partition(limits=SMALL)
    for producer_id in range(10):
        partition.commit(claim(producer_id, 0))
    partition.now_ms += FORGOTTEN_AFTER * DAY_MS
    partition.commit(claim(500, 0))
    assert partition.remembered == {*range(10), 500}
    partition.now_ms += 1
    partition.commit(claim(500, 1))

    assert partition.remembered == {500}
    assert partition.manifest.pages == ()


def test_an_expired_state_does_not_come_back_from_a_page_when_the_hot_one_has_gone() -> None:
    partition = Partition(limits=SMALL)
    for producer_id in range(6):
        partition.commit(claim(producer_id, 0))
    partition.now_ms += FORGOTTEN_AFTER * DAY_MS // 2
    for producer_id in range(1, 6):
        partition.commit(claim(producer_id, 1))
    partition.now_ms += FORGOTTEN_AFTER * DAY_MS // 2 + 1

    assert partition.commit(claim(1, 2)).verdicts[0].outcome is Outcome.APPENDED
    assert partition.commit(claim(0, 2)).verdicts[0].outcome is Outcome.NO_PREDECESSOR, "as for a producer that nobody knows"


def test_an_expired_state_in_a_page_shows_that_a_batch_is_the_next_one() -> None:
    partition = Partition(limits=SMALL)
    for producer_id in range(6):
        partition.commit(claim(producer_id, 0))
    partition.now_ms += DAY_MS + 1

    assert partition.commit(claim(0, 2)).verdicts[0].outcome is Outcome.NO_PREDECESSOR
    assert partition.commit(claim(0, 1)).verdicts[0].outcome is Outcome.APPENDED


def test_an_expired_state_that_a_page_has_an_older_copy_of_leaves_only_by_way_of_that_page() -> None:
    """Another broker's clock may be behind, and the older copy not expired to it (model F-page-expiry)."""
    older = ProducerState(0, (ProducerBatch(0, 0, 10, NOW_MS),))
    newer = ProducerState(0, (ProducerBatch(0, 0, 10, NOW_MS), ProducerBatch(1, 1, 20, NOW_MS + 500)))
    other = ProducerState(0, (ProducerBatch(0, 0, 30, NOW_MS + 1_000),))
    manifest = Manifest(sequence_counter=40, producers={5: newer, 60: newer}, pages=(PageRef("1-7-1-1-0", 5, 6, NOW_MS + 1_000),))
    partition = Partition(manifest, {"1-7-1-1-0": {5: older, 6: other}}, now_ms=NOW_MS + FORGOTTEN_AFTER * DAY_MS + 501)
    partition.commit(claim(900, 0))

    assert set(partition.manifest.producers) == {5, 900}, "60 is in no page"
    assert partition.manifest.producers[5] == newer


def test_a_partition_that_is_full_forgets_the_oldest_page_when_that_is_old_and_refuses_unknown_producers_when_it_is_not() -> None:
    state = functools.partial(ProducerState, 0)
    refs, pages = [], {}
    for place in range(PRODUCER_PAGES_MAX):
        pages[f"1-7-1-1-{place}"] = {place * 10: state((ProducerBatch(0, 0, place, NOW_MS + place),))}
        refs.append(PageRef(f"1-7-1-1-{place}", place * 10, place * 10, NOW_MS + place))
    lately = Partition(Manifest(pages=tuple(refs)), pages, now_ms=NOW_MS + 1_000)
    later = Partition(Manifest(pages=tuple(refs)), dict(pages), now_ms=NOW_MS + 3_600_000)

    assert lately.commit(claim(5, 0)).verdicts[0].outcome is Outcome.NO_ROOM
    assert lately.commit(claim(10, 1)).verdicts[0].outcome is Outcome.APPENDED, "who is known goes on"
    assert later.commit(claim(5, 0)).verdicts[0].outcome is Outcome.APPENDED


def test_what_is_hot_stays_within_its_bytes() -> None:
    partition = Partition()
    for sequence in range(8):
        for begin in range(0, 60, 20):
            partition.commit(*[claim(producer_id, sequence) for producer_id in range(begin, begin + 20)])
            assert len(encode(Manifest(producers=partition.manifest.producers))) < PRODUCERS_HOT_BYTES_MAX
