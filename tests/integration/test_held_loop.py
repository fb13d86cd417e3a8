"""Brokers of tests may not hold their event loop: how a test finds out."""

import json
from pathlib import Path

import pytest

from tests.kit.serving import LOOP_HELD_S_MAX, assert_loop_was_free, loop_may_be_held


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    path = tmp_path / "broker.log"
    lines = [
        {"event": "event_loop_blocked", "seconds": LOOP_HELD_S_MAX, "api": "Fetch", "stack": "a.py:1 short"},
        {"event": "event_loop_blocked", "seconds": LOOP_HELD_S_MAX + 0.001, "api": "Metadata", "stack": "b.py:2 long"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_broker_that_held_its_loop_fails_its_test_with_what_it_did(log_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"b\.py:2 long") as failed:
        assert_loop_was_free(log_path)

    assert "short" not in str(failed.value)


def test_a_test_that_says_why_may_have_a_broker_that_holds_its_loop(log_path: Path) -> None:
    with loop_may_be_held("it asks for the moon"):
        assert_loop_was_free(log_path)


@pytest.mark.holds_loop("it shows that the marker is heard")
def test_the_marker_says_why(log_path: Path) -> None:
    assert_loop_was_free(log_path)


def test_a_turn_that_mostly_waited_for_a_processor_may_be_counted_a_tenth_of_the_wait_too_long(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    held = {"event": "event_loop_blocked", "seconds": LOOP_HELD_S_MAX + 0.2, "api": "Fetch", "stack": "a.py:1 waited"}
    path.write_text(json.dumps(held | {"waited_for_cpu_seconds": 2.5}) + "\n")

    assert_loop_was_free(path)

    path.write_text(json.dumps(held | {"waited_for_cpu_seconds": 1.5}) + "\n")
    with pytest.raises(AssertionError):
        assert_loop_was_free(path)
