"""What became of a commit without an answer, case by case."""

import pytest

from storage.formats.manifest import Manifest, WriterEntry
from storage.log.decide import AttemptOutcome, Decision, Found, attempt_outcome, one_more

OURS, SENT = 7, 40


@pytest.mark.parametrize(
    ("writers", "version", "may_be_dropped", "fate"),
    [
        ({OURS: WriterEntry(3, 2)}, 41, False, Found(2)),
        ({OURS: WriterEntry(3, 1)}, 99, True, Found(1)),
        ({OURS: WriterEntry(2, 1)}, SENT, False, AttemptOutcome.UNDECIDED),
        ({}, SENT, True, AttemptOutcome.UNDECIDED),
        ({OURS: WriterEntry(2, 1)}, 41, True, AttemptOutcome.FAILED),
        ({}, 41, False, AttemptOutcome.FAILED),
        ({8: WriterEntry(3, 1)}, 41, True, AttemptOutcome.NEVER_KNOWN),
    ],
)
def test_the_record_read_since_says_it(
    writers: dict[int, WriterEntry], version: int, may_be_dropped: bool, fate: Found | AttemptOutcome
) -> None:
    found = attempt_outcome(Manifest(writers=writers), version, epoch=OURS, commit_seq=3, sent_version=SENT, may_be_dropped=may_be_dropped)

    assert found == fate


def test_an_attempt_without_an_answer_stays_known_when_later_ones_have_none_either() -> None:
    first, second = Decision((), Manifest(sequence_counter=1), None), Decision((), Manifest(sequence_counter=2), None)
    unknown = one_more(one_more(None, 1, first, version=7), 3, second, version=9)

    assert unknown.version == 9, "the version that the last of them expected"
    assert (unknown.decision(1), unknown.decision(3)) == (first, second)
