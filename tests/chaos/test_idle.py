"""What brokers with nothing to do ask of Oxia and S3, counted on the wire."""

import contextlib
import time
from pathlib import Path

import pytest

from process.http.probes import OBJECT_STORE_IDLE_S
from runtime.clock import SystemClock
from tests.chaos.streams import create_topics
from tests.kit.native import Native, native_services

BROKERS = 3
SETTLED_AFTER_S = 3.0
SETTLED_WITHIN_S = 60.0
WATCHED_S = 10.0
"""With SETTLED_AFTER_S less than `OBJECT_STORE_IDLE_S`, after which an object is put to see whether that works."""

_clock = SystemClock()


def wait_settled(native: Native) -> None:
    """Answers to hints and other things that follow a start are no part of being idle."""
    give_up_s = _clock.monotonic_s() + SETTLED_WITHIN_S
    while True:
        before = native.oxia_proxy.counts.calls
        time.sleep(SETTLED_AFTER_S)  # the time that is looked at
        asked = native.oxia_proxy.counts.calls - before
        if asked.total() - asked["KeepAlive"] <= BROKERS * SETTLED_AFTER_S or _clock.monotonic_s() > give_up_s:
            return


@pytest.mark.timeout(600)  # three brokers start one after the other
def test_idle_brokers_put_nothing_before_they_are_probed_and_ask_oxia_at_most_once_a_second(tmp_path: Path) -> None:
    with native_services(tmp_path) as native, contextlib.ExitStack() as running:
        brokers, began_s = [], []
        for _ in range(BROKERS):
            began_s.append(_clock.monotonic_s())
            brokers.append(running.enter_context(native.broker()))
        create_topics(brokers[0].bootstrap, "a", "b")
        wait_settled(native)
        watched_from_s = _clock.monotonic_s()
        oxia_before, s3_before = native.oxia_proxy.counts, native.s3_proxy.counts
        time.sleep(WATCHED_S)  # the time that is looked at
        asked = native.oxia_proxy.counts.calls - oxia_before.calls
        stored = native.s3_proxy.counts.calls - s3_before.calls
        watched_s = _clock.monotonic_s() - watched_from_s
        # None, unless this machine is so busy that starting three brokers took seconds.
        probes_max = sum(int((_clock.monotonic_s() - one_s) // OBJECT_STORE_IDLE_S) for one_s in began_s)

    keep_alives = asked.pop("KeepAlive")
    assert keep_alives >= BROKERS, "they are alive"
    assert asked.total() <= BROKERS * watched_s, asked
    assert stored["PUT"] <= probes_max, stored
    assert stored["DELETE"] <= probes_max, stored
    assert stored["LIST"] == 0, stored
