"""The tables of docs/operations.md are those of the code. `python -m forebay.reference` renews them."""

import pytest

from forebay.reference import PAGE, metrics, metrics_table, renewed, settings_table
from process.settings.keys import SETTINGS

page = PAGE.read_text()

COUNTS_OF_THINGS = {
    "forebay_produce_batches",
    "forebay_connections",
    "forebay_connections_max",
    "forebay_coordinator_slots",
    "forebay_group_members",
    "forebay_groups",
    "forebay_metadata_file_lost",
    "forebay_partitions_remembered",
    "forebay_producers_waiting",
    "forebay_ready",
    "forebay_store_failing",
}


def test_the_page_has_the_tables_of_the_code() -> None:
    assert renewed(page) == page, "run `python -m forebay.reference`"


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_is_in_the_table(key: str) -> None:
    assert settings_table().count(f"| `{key}` |") == 1


def test_every_metric_is_in_the_table_and_named_as_prometheus_does() -> None:
    found = metrics()
    table = metrics_table()

    assert {"forebay_ready", "forebay_build_info", "forebay_object_store_requests_total", "forebay_cache_bytes"} <= {
        one.name for one in found
    }
    for one in found:
        assert table.count(f"| `{one.name}` |") == 1
        assert one.name.startswith("forebay_")
        assert one.name.endswith(("_total", "_seconds", "_bytes", "_info")) or one.name in COUNTS_OF_THINGS, one.name


def test_the_parts_outside_the_marks_are_left_alone() -> None:
    text = "# A\n<!-- generated: settings -->\nold\n<!-- end -->\nB\n<!-- generated: metrics -->\n<!-- end -->\nC\n"

    fresh = renewed(text)

    assert fresh.startswith("# A\n<!-- generated: settings -->\n| Setting |")
    assert "\n<!-- end -->\nB\n<!-- generated: metrics -->\n| Metric |" in fresh
    assert fresh.endswith("\n<!-- end -->\nC\n")
    assert renewed(fresh) == fresh
