"""kill -9 of the broker in the middle of a produce run, again and again: acked is there, offsets are dense, idempotence appends once."""

import contextlib
import random
import time
from pathlib import Path

import pytest

from tests.chaos.streams import Stream, create_topics, judge, running, wait_for_progress
from tests.kit.serving import serving

KILLS = 20
NOT_EARLY = {"storage.early_bytes_per_second": "0B"}
"""Every second life carries no small batches in its commits, and reads what the others have carried."""
SEED = 20_130_101


@pytest.mark.timeout(300)
def test_twenty_kills_lose_no_acked_record_and_append_no_idempotent_one_twice(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with serving(tmp_path) as first:
        port, bootstrap = first.kafka_port, first.bootstrap
        create_topics(bootstrap, "idempotent", "plain")
        first.kill9()
    streams = [Stream(bootstrap, "idempotent", idempotent=True), Stream(bootstrap, "plain", idempotent=False)]
    with contextlib.ExitStack() as last:
        with running(streams):
            for number in range(KILLS):
                with serving(tmp_path, kafka_port=port, settings={} if number % 2 else NOT_EARLY) as served:
                    wait_for_progress(streams, within_s=30)
                    time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is drawn by chance
                    served.kill9()
            last.enter_context(serving(tmp_path, kafka_port=port))
        for stream in streams:
            judge(stream, bootstrap)
