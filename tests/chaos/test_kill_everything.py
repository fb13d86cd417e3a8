"""kill -9 of the broker, Oxia and S3 at once, twenty times, while producers write little, or small and large batches beside each other."""

import contextlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.streams import NOT_INLINE_BYTES, Stream, create_topics, judge, running, wait_for_progress
from tests.kit.native import Native, native_services

KILLS = 20
PROGRESS_WITHIN_S = 30.0
SEED = 20_261_126
SPARSE_PACE_S, MIXED_PACE_S = 0.2, 0.02
FEW_EARLY = {"storage.early_bytes_per_second": "32KiB"}
"""The first batches of a life go early, and those that follow wait for an object."""
SMALL_BATCHES = {"batch.num.messages": 5}
"""As many as an idempotent producer has under way are less than a commit may carry."""


@dataclass(frozen=True)
class Kills:
    """In how many lives batches went early, and in how many they waited for an object."""

    lives_with_early_commits: int
    lives_with_objects: int


def kill_everything(native: Native, streams: list[Stream], port: int, settings: Mapping[str, str]) -> Kills:
    chance = random.Random(SEED)
    with_early_commits = with_objects = 0
    for _ in range(KILLS):
        with native.broker(kafka_port=port, afresh=True, settings=settings) as broker:
            wait_for_progress(streams, within_s=PROGRESS_WITHIN_S)
            time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is drawn by chance
            metrics = broker.metrics()
            with_early_commits += metrics["forebay_early_commits_total"] > 0
            with_objects += sum(count for name, count in metrics.items() if name.startswith("forebay_flush_objects_total{")) > 0
            first, second, third = chance.sample((broker.kill9, native.oxia.kill9, native.s3.kill9), 3)
            first()
            second()
            third()
        native.s3.start()
        native.oxia.start()
    return Kills(with_early_commits, with_objects)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("load", ["sparse", "mixed"])
def test_twenty_kills_of_everything_lose_no_acked_record_and_append_no_idempotent_one_twice(tmp_path: Path, load: str) -> None:
    with native_services(tmp_path) as native:
        with native.broker(afresh=True) as first:
            port, bootstrap = first.kafka_port, first.bootstrap
            create_topics(bootstrap, "idempotent", "plain")
            first.kill9()
        if load == "sparse":
            streams = [
                Stream(bootstrap, "idempotent", idempotent=True, settings=SMALL_BATCHES, pace_s=SPARSE_PACE_S),
                Stream(bootstrap, "plain", idempotent=False, settings=SMALL_BATCHES, pace_s=SPARSE_PACE_S),
            ]
        else:
            streams = [
                Stream(bootstrap, "idempotent", idempotent=True, value_bytes=NOT_INLINE_BYTES, pace_s=MIXED_PACE_S),
                Stream(bootstrap, "plain", idempotent=False, pace_s=MIXED_PACE_S),
            ]
        with contextlib.ExitStack() as last:
            with running(streams):
                kills = kill_everything(native, streams, port, FEW_EARLY if load == "mixed" else {})
                last.enter_context(native.broker(kafka_port=port))
            for stream in streams:
                judge(stream, bootstrap)
    assert kills.lives_with_early_commits > KILLS / 2
    if load == "mixed":
        assert kills.lives_with_objects > KILLS / 2
    else:
        assert kills.lives_with_objects == 0, "a sparse load stores no object for its batches"
