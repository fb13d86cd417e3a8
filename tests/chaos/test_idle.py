"""What brokers with nothing to do ask of Oxia and S3, counted on the wire."""

import contextlib
import time
from pathlib import Path

import pytest

from process.http.probes import OBJECT_STORE_IDLE_S
from runtime.clock import SystemClock
from tests.chaos.streams import create_topics
from tests.kit.native import native_services

BROKERS = 3
SETTLED_AFTER_S = 3.0
WATCHED_S = 10.0
"""Both together are less than `OBJECT_STORE_IDLE_S`, after which an object is put to see whether that works."""

_clock = SystemClock()


@pytest.mark.timeout(120)
def test_idle_brokers_put_nothing_before_they_are_probed_and_ask_oxia_at_most_once_a_second(tmp_path: Path) -> None:
    with native_services(tmp_path) as native, contextlib.ExitStack() as running:
        brokers, began_s = [], []
        for _ in range(BROKERS):
            began_s.append(_clock.monotonic_s())
            brokers.append(running.enter_context(native.broker()))
        create_topics(brokers[0].bootstrap, "a", "b")
        time.sleep(SETTLED_AFTER_S)  # what follows a start and the creation of topics, such as answers to hints, is no part of being idle
        oxia_before, s3_before = native.oxia_proxy.counts, native.s3_proxy.counts
        time.sleep(WATCHED_S)  # the time that is looked at
        asked = native.oxia_proxy.counts.calls - oxia_before.calls
        stored = native.s3_proxy.counts.calls - s3_before.calls
        # None, unless this machine is so busy that starting three brokers took seconds.
        probes_max = sum(int((_clock.monotonic_s() - one_s) // OBJECT_STORE_IDLE_S) for one_s in began_s)

    keep_alives = asked.pop("KeepAlive")
    assert keep_alives >= BROKERS, "they are alive"
    assert asked.total() <= BROKERS * WATCHED_S, asked
    assert stored["PUT"] <= probes_max, stored
    assert stored["DELETE"] <= probes_max, stored
    assert stored["LIST"] == 0, stored
