"""The tables of the documents are those of the code. `make docs` renews them."""

import ast
import re
from pathlib import Path

import pytest

from forebay.reference import PAGES, PARTS, metrics, metrics_table, renew_page, settings_table
from process.settings.reference import SETTINGS
from storage.catalog.topic_configs import TOPIC_CONFIGS, ConfigEffect
from tests.architecture.trees import nodes_of, tree_of

ROOT = Path(__file__).parents[2]

COUNTS_OF_THINGS = {
    "forebay_http_streams",
    "forebay_role",
    "forebay_cost_budget_dollars",
    "forebay_cost_price_dollars",
    "forebay_produce_batches",
    "forebay_connections",
    "forebay_connections_max",
    "forebay_gc_missing_objects",
    "forebay_metadata_went_back",
    "forebay_coordinator_slots",
    "forebay_group_members",
    "forebay_compactor_failed_partitions",
    "forebay_compactor_partitions",
    "forebay_early_pages",
    "forebay_early_waiting_objects",
    "forebay_groups",
    "forebay_cost_storage_dollars_per_month",
    "forebay_footprint_objects",
    "forebay_group_lag_records",
    "forebay_group_lag_retention_ratio",
    "forebay_group_joined_members",
    "forebay_group_uncommitted_partitions",
    "forebay_http_consumers",
    "forebay_metrics_series",
    "forebay_metadata_file_lost",
    "forebay_partition_cache_entries",
    "forebay_producers_waiting",
    "forebay_ready",
    "forebay_store_failing",
}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_a_page_has_the_tables_of_the_code(file: Path) -> None:
    assert renew_page(file.read_text()) == file.read_text(), "run `make docs`"


def test_every_table_is_on_one_page() -> None:
    pages = [file.read_text() for file in PAGES]

    assert [name for name in PARTS if sum(page.count(f"<!-- generated: {name} -->\n") for page in pages) != 1] == []


def test_every_topic_config_is_on_its_page_once() -> None:
    text = (ROOT / "docs" / "reference" / "topic-configs.md").read_text()

    assert len(TOPIC_CONFIGS) > 30
    assert [name for name in TOPIC_CONFIGS if text.count(f"| `{name}` |") != 1] == []


def test_a_topic_config_is_called_enforced_if_and_only_if_a_handler_or_a_compactor_reads_it() -> None:
    read = {
        node.value
        for path in (
            ROOT / "broker" / "handling" / "validation.py",
            ROOT / "broker" / "handlers" / "log" / "delete_records.py",
            ROOT / "compactor" / "plan.py",
        )
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.Constant) and node.value in TOPIC_CONFIGS
    }
    levels = {name for name in TOPIC_CONFIGS if name.startswith("compression.") and name.endswith(".level")}  # read by an f-string
    in_part = {"cleanup.policy"}  # delete is enforced; keys are required and DeleteRecords is refused

    assert {name for name, one in TOPIC_CONFIGS.items() if one.effect is ConfigEffect.ENFORCED} == (read | levels) - in_part


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


def test_every_metric_that_a_page_names_exists() -> None:
    known = {name for one in metrics() for name in (one.name, one.former_name)}
    found = {
        (page.name, name)
        for page in sorted(path for part in ("guides", "reference") for path in (ROOT / "docs" / part).glob("*.md"))
        for name in re.findall(r"`(forebay_[a-z0-9_]+)[`{]", page.read_text())
        if name not in known and re.sub(r"_(bucket|count|sum|total|info)$", "", name) not in known
    }

    assert found == set()


def test_the_parts_outside_the_marks_are_left_alone() -> None:
    text = "# A\n<!-- generated: settings -->\nold\n<!-- end -->\nB\n<!-- generated: metrics -->\n<!-- end -->\nC\n"

    fresh = renew_page(text)

    assert fresh.startswith("# A\n<!-- generated: settings -->\n| Setting |")
    assert "\n<!-- end -->\nB\n<!-- generated: metrics -->\n| Metric |" in fresh
    assert fresh.endswith("\n<!-- end -->\nC\n")
    assert renew_page(fresh) == fresh
    with pytest.raises(KeyError, match="prices"):
        renew_page("<!-- generated: prices -->\n<!-- end -->")


TRANSCRIPTS = {
    "docs/reference/cli.md": "tests/integration/test_cli_page.py",
    "docs/reference/http.md": "tests/unit/broker/http/test_page.py",
    "docs/internals/formats/README.md": "tests/unit/forebay/commands/debug/test_format_examples.py",
    "docs/guides/doctor.md": "tests/integration/test_doctor.py",
    "docs/guides/troubleshooting.md": "tests/integration/test_troubleshooting.py",
}
"""The test that runs what a page shows with a prompt before it, and compares."""
REPLAYED_WHOLE = {"docs/reference/cli.md", "docs/internals/formats/README.md"}


def headings_of_transcripts(text: str) -> list[str]:
    """The heading above each block that has a prompt."""
    found, heading, is_block = [], "", False
    for line in text.splitlines():
        if line.startswith("```"):
            is_block = not is_block
        elif line.startswith("#") and not is_block:
            heading = line.lstrip("# ")
        elif line.startswith("$ ") and is_block:
            found.append(heading)
    return list(dict.fromkeys(found))


def test_every_transcript_is_run_again_by_a_test() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(ROOT / folder / "README.md" for folder in ("examples", "services", "spark"))]
    shown = {str(page.relative_to(ROOT)): headings_of_transcripts(page.read_text()) for page in pages}
    shown = {page: headings for page, headings in shown.items() if headings}

    assert shown.keys() == TRANSCRIPTS.keys()
    for page, test in TRANSCRIPTS.items():
        replays = (ROOT / test).read_text()
        assert Path(page).name in replays
        assert page in REPLAYED_WHOLE or [heading for heading in shown[page] if f'"{heading}"' not in replays] == []
