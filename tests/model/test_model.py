"""The protocol holds in every interleaving, and fails without any of its steps. `python -m model` runs all variants."""

import re
from pathlib import Path

import pytest

from model import __main__ as command_line
from model.search import OK, UNFINISHED, VIOLATION, Result
from model.variants import ALL

HOLD = {
    "A2": 3_186,
    "B1": 2_656,
    "B2": 7_488,
    "R2": 7_488,
    "Forebay-floor": 16_580,
    "Forebay-early-one": 7_806,
    "Forebay-early-compacted-one": 1_845,
    "Forebay-early-chunks-one": 266,
    "Forebay-early-mixed-one": 13_898,
    "Forebay-early-again": 52_304,
    "Forebay-early-reader": 6_026,
    "Forebay-early-reader-writers": 54_676,
    "Forebay-pages-00": 2_785,
    "Forebay-merge": 23_074,
    "Forebay-merge-late": 504,
    "Forebay-merge-twice": 783,
    "Forebay-merge-split": 1_543,
    "Forebay-merge-stale": 2_800,
    "Forebay-merge-collectors": 1_548,
    "Forebay-merge-reserved": 3_057,
    "Forebay-collect": 12_967,
    "Forebay-collect-void": 2_574,
    "Forebay-collect-deleted": 2_701,
    "Forebay-collect-flushes": 18_371,
    "Forebay-collect-early": 22_279,
    "Forebay-collect-early-pages": 23_775,
    "Forebay-collect-early-two": 4_946,
    "Forebay-collect-early-void": 8_223,
    "Forebay-collect-early-deleted": 2_094,
    "Forebay-purge": 6_528,
    "Forebay-purge-list": 7_557,
    "Forebay-restore": 21_343,
    "Forebay-restore-late": 24_930,
    "Forebay-restore-unaware": 6_766,
    "Forebay-restore-unaware-late": 13_340,
    "Forebay-restore-accept": 6_168,
    "Forebay-restore-accept-collect": 2_923,
    "Forebay-restore-marks": 23_575,
}
"""States of variants that hold and are small."""
QUICK_STATES_MAX = 4_000

BREAK = {
    "R0": (5, "appended twice"),
    "G0": (4, "a reader gets object 0 GONE"),
    "F-inline": (4, "a reader gets BYTES GONE"),
    "F-early-first": (3, "a reader gets early page 0 GONE"),
    "F-early-all": (6, "a reader gets early page 1 GONE"),
    "F-early-adopted": (6, "a reader gets early page 1 GONE"),
    "F-early-place": (4, "expected batch 1, a reader gets 0"),
    "F-early-once": (4, "a reader gets early page 0 GONE"),
    "F-early-grace": (5, "a reader gets early page 0 GONE"),
    "F-early-look": (6, "a reader gets early page 0 GONE"),
    "F-early-floor": (7, "a reader gets early page 0 GONE"),
    "F-early-cursor": (4, "a reader gets early page 0 GONE"),
    "F-early-again": (8, "appended twice"),
    "F-early-absent": (4, "its reader ends with: damaged"),
    "F-early-skip": (4, "its reader ends with: passed over"),
    "F-early-order": (6, "its reader ends with: damaged"),
    "F-early-apart": (6, "its reader ends with: damaged"),
    "F-early-object": (7, "its reader ends with: damaged"),
    "F-early-proof": (13, "its reader ends with: damaged"),
    "F-own": (7, "the log says"),
    "F-cursor": (4, "a reader gets NOTHING"),
    "F-objects": (5, "a reader gets object 0 GONE"),
    "F-ack": (1, "acked, not committed"),
    "F-conflict": (7, "appended twice"),
    "F-absent": (6, "appended twice"),
    "F-revoked": (6, "a reader gets object 0 GONE"),
    "F-look": (5, "a reader gets object 0 GONE"),
    "F-loser": (8, "a reader gets object s"),
    "F-base": (10, "a reader gets NOTHING"),
    "F-page-absent": (6, "is appended twice"),
    "F-page-expiry": (7, "p0 has 2 batches in the log, its state says 1"),
    "F-page-key": (10, "is appended twice"),
    "F-page-key-number": (10, "is acked and was never appended"),
    "F-page-overwrite": (9, "is appended twice"),
    "F-page-sweep": (5, "which is gone"),
    "F-page-sweep-equal": (5, "which is gone"),
    "F-spill-stale": (9, "is appended twice"),
    "F-merge-late-put": (10, "goes back to what a merge had left out"),
    "F-merge-place-swept": (3, "a reader gets NOTHING"),
    "F-merge-delete-first": (1, "a reader gets NOTHING"),
    "F-merge-newest": (7, "goes back to what a merge had left out"),
    "F-merge-blind": (9, "goes back to what a merge had left out"),
    "F-merge-scan-first": (6, "nothing that may happen from here leads to the goal"),
    "F-merge-stale": (6, "nothing that may happen from here leads to the goal"),
    "F-merge-loser": (3, "a reader gets object m"),
    "F-rewritten-nofloor": (6, "a reader gets object m"),
    "F-rewritten-overwritten": (3, "goes back to what a merge had left out"),
    "F-rewritten-cleared-early": (2, "goes back to what a merge had left out"),
    "F-rewritten-cleared-half": (3, "goes back to what a merge had left out"),
    "F-rewritten-below": (4, "nothing that may happen from here leads to the goal"),
    "F-collect-segments-grace": (4, "a reader gets object m"),
    "F-collect-segments-look": (5, "a reader gets object m"),
    "F-collect-segments-stale": (8, "a reader gets object m"),
    "F-collect-grace": (4, "object 0 GONE"),
    "F-collect-look": (6, "object 0 GONE"),
    "F-collect-header": (5, "object 0 GONE"),
    "F-collect-floor-lowered": (5, "object 1 GONE"),
    "F-collect-absent": (4, "object 0 GONE"),
    "F-collect-stale": (7, "object 0 GONE"),
    "F-collect-early-look": (5, "object 0 GONE"),
    "F-collect-early-header": (8, "object 0 GONE"),
    "F-collect-early-age": (2, "object 0 GONE"),
    "F-collect-early-all": (7, "object 0 GONE"),
    "F-collect-early-compactor": (3, "object 0 GONE"),
    "F-purge-keys-first": (7, "the log is open, and its index is gone"),
    "F-purge-tombstone-early": (6, "an open log that belongs to nobody"),
    "F-purge-record": (10, "nothing that may happen from here leads to the goal"),
    "F-purge-half-made": (4, "a topic whose partition has no open log"),
    "F-purge-old-list": (6, "the log is open, and its index is gone"),
    "F-restore-delete-first": (11, "object 0 is named and GONE"),
    "F-restore-put-first": (8, "refused, and nothing was restored"),
    "F-restore-look-last": (12, "object 0 is named and GONE"),
    "F-restore-one-raise": (14, "object 0 is named and GONE"),
    "F-restore-blind": (11, "refused, and nothing was restored"),
    "F-restore-read-once": (8, "refused, and nothing was restored"),
    "F-restore-stale": (9, "refused, and nothing was restored"),
    "F-restore-own": (8, "refused, and nothing was restored"),
    "F-restore-overwrite": (13, "behind a refusal"),
    "F-restore-number": (16, "object 0 is named and GONE"),
    "F-restore-looked-once": (8, "it is NAMED"),
    "F-restore-revoked-once": (12, "object 0 is named and GONE"),
    "F-restore-compared-once": (10, "behind a refusal"),
    "F-restore-accept-deletes": (20, "object 1 was not named at the acceptance and is GONE"),
    "F-restore-accept-order": (20, "object 1 was not named at the acceptance and is GONE"),
    "F-restore-accept-at-once": (13, "object 1 was not named at the acceptance and is GONE"),
    "F-restore-accept-kept": (15, "object 0 was not named at the acceptance and is GONE"),
    "F-restore-mark-early": (4, "refused, and nothing was restored"),
    "F-restore-mark-version": (6, "a commit that a mark names is LOST"),
}
"""Variants that lack a step: in how few steps which promise is broken."""

STATES_MAX = 60_000
STATES_SLOW_MAX = 400_000
"""About 1 GB."""
LARGER = ("G1", "Forebay", "Spill-", "Page-")
"""Names of variants that hold and may have more states than a test has time for begin like these."""
LONG = {
    "F-spill",
    "Forebay",
    "Forebay-all",
    "Forebay-compactors",
    "Forebay-early",
    "Forebay-early-again-both",
    "Forebay-early-chunks",
    "Forebay-early-compacted",
    "Forebay-early-mixed",
    "Forebay-gc",
    "Forebay-inline",
    "Forebay-inlines",
    "Forebay-pages",
    "Forebay-pages-10",
    "Forebay-pages-death",
    "Forebay-pages-drop",
    "Forebay-pages-expiry",
    "Forebay-pages-gather",
    "Forebay-pages-key",
    "Forebay-pages-split",
    "Forebay-pages-three",
    "Forebay-pages-touch",
    "Forebay-retention",
    "Forebay-segment",
    "G1",
    "Page-key-attempt",
    "Spill-order",
}
"""Twenty minutes together; the others take less than one."""


def explore(name: str) -> Result:
    return ALL[name].explore(states_max=STATES_MAX)


@pytest.mark.parametrize(
    "name", [name if states <= QUICK_STATES_MAX else pytest.param(name, marks=pytest.mark.slow) for name, states in HOLD.items()]
)
def test_a_variant_that_is_right_keeps_its_promises_in_every_state(name: str) -> None:
    result = explore(name)

    assert (result.verdict, result.why, result.trace) == (OK, "", ())
    assert result.states == HOLD[name]


@pytest.mark.parametrize("name", BREAK)
def test_a_variant_that_lacks_a_step_breaks_a_promise(name: str) -> None:
    steps, promise = BREAK[name]

    result = explore(name)

    assert result.verdict == ALL[name].expect == VIOLATION
    assert promise in result.why
    assert len(result.trace) == steps


def test_a_search_that_is_cut_off_is_not_taken_for_one_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["Forebay-pages-00", "--states-max", "100"]) == 1

    shown = capsys.readouterr().out
    assert "UNFINISHED" in shown
    assert "1 unexpected" in shown


def test_the_command_prints_how_a_promise_was_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["F-ack", "F-page-sweep"]) == 0

    shown = capsys.readouterr().out
    assert " 1. w0 reads control, sends commit of batch 0" in shown or " 1. w1 reads control, sends commit of batch 2" in shown
    assert "acked, not committed" in shown
    assert " 5. a sweep lists page 1-" in shown
    assert shown.endswith("all as expected\n")


def test_a_name_that_no_variant_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["Foreby"])

    assert "no variant is called Foreby" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in ALL if name not in {*HOLD, *BREAK}]
)
def test_every_larger_variant_ends_as_expected(name: str) -> None:
    result = ALL[name].explore(states_max=STATES_SLOW_MAX)

    if result.verdict == UNFINISHED and name.startswith(LARGER):
        assert ALL[name].expect == OK
        assert result.states > STATES_SLOW_MAX
    else:
        assert result.verdict == ALL[name].expect, result.why


def test_the_page_of_the_model_lists_the_variants_as_they_are() -> None:
    page = (Path(command_line.__file__).parent / "README.md").read_text()
    rows = [
        f"| `{name}` | {checked.about} | {'holds' if checked.expect == OK else 'breaks'} | {'yes |' if name in {*HOLD, *BREAK} else '|'}"
        for name, checked in ALL.items()
    ]

    assert re.findall(r"^\| `.*\|$", page, re.MULTILINE) == rows


def test_every_variant_of_the_design_is_expected_to_hold_and_every_one_without_a_step_to_fail() -> None:
    assert {name for name, checked in ALL.items() if name.startswith("F-")} <= {
        name for name, checked in ALL.items() if checked.expect == VIOLATION
    }
    assert all(checked.expect == OK for name, checked in ALL.items() if name.startswith("Forebay"))
