"""What a Prometheus finds on the page of a broker that runs."""

from pathlib import Path

from tests.kit.serving import serving

IDLE_SERIES_MAX = 400


def test_an_idle_broker_has_few_series_and_says_how_many(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        found = served.metrics()

    assert len(found) <= IDLE_SERIES_MAX
    assert found["forebay_metrics_series"] == len(found)
    assert found["forebay_flush_interval_seconds"] == 0.005
    assert found["forebay_flush_limit_bytes"] == 8 * 2**20
    assert found["forebay_inline_limit_bytes"] == 1024
    assert found["forebay_request_buffer_limit_bytes"] == 192 * 2**20
