"""The numbers that docs/internals/design tells are those of the code."""

from pathlib import Path
from typing import Final

import pytest

from broker.cluster.leadership import COORDINATOR_SLOTS
from broker.delayed_fetch import TRUSTED_POLL_S
from broker.limits import DEFAULT_FETCH_LIMITS
from compactor.limits import DEFAULT_LIMITS as COMPACTOR_LIMITS
from compactor.plan import TidyPolicy
from storage.catalog.brokers import SESSION_TIMEOUT_MS
from storage.catalog.limits import DEFAULT_LIMITS as CATALOG_LIMITS
from storage.catalog.producer_ids import BLOCK_IDS
from storage.catalog.topics import FORMER_MAX
from storage.limits import (
    FLUSH_PARTITIONS_MAX,
    KIB,
    MIB,
    PRODUCER_BATCHES_KEPT,
    PRODUCER_KEPT_MS_MIN,
    PRODUCER_PAGES_MAX,
    PRODUCERS_HOT_BYTES_MAX,
)
from storage.log.decide import PRODUCER_EXPIRATION_MS
from storage.log.flush import GATHER_S, FlushSettings
from storage.log.limits import DEFAULT_LIMITS
from storage.log.unknown_producers import PROOF_WAIT_S
from storage.metadata.oxia.following import STREAMS_MAX

PAGES: Final = Path(__file__).parents[2] / "docs/internals/design"
WORDS: Final = {3: "three", 4: "four", 5: "five", 8: "eight", 16: "sixteen"}
TOLD: Final = [
    ("commit", f"`storage.flush_bytes`, {FlushSettings().bytes_max // MIB} MiB"),
    ("commit", f"on partitions ({FLUSH_PARTITIONS_MAX:,})"),
    ("commit", f"goes {GATHER_S * 1_000:g} ms after its first batch"),
    ("commit", f"When {DEFAULT_LIMITS.pending_entries_max} are pending"),
    ("commit", f"one put for {WORDS[DEFAULT_LIMITS.pending_entries_max]} appends"),
    ("commit", f"would exceed {DEFAULT_LIMITS.manifest_bytes_max // KIB} KiB"),
    ("commit", f"when there are more than {DEFAULT_LIMITS.writers_kept_max}"),
    ("commit", f"at most {DEFAULT_LIMITS.commit_timeout_s:g} s from sealing"),
    ("commit", f"the last {WORDS[PRODUCER_BATCHES_KEPT]} batches"),
    ("commit", f"{DEFAULT_LIMITS.producers_hot_max} producers, or {PRODUCERS_HOT_BYTES_MAX // KIB} KiB"),
    ("commit", f"({PRODUCER_PAGES_MAX} pages,"),
    ("commit", f"over {PRODUCER_KEPT_MS_MIN // 60_000} minutes ago"),
    ("commit", f"refusing for {DEFAULT_LIMITS.unknown_producers_wait_s:g} s"),
    ("commit", f"in the last {2 * DEFAULT_LIMITS.unknown_producers_wait_s:g} s: that one comes again"),
    ("commit", f"up to {FORMER_MAX} former topics"),
    ("commit", f"for {PROOF_WAIT_S:g} s at most; where they take longer"),
    ("reading", f"longer than {DEFAULT_FETCH_LIMITS.late_after_s:g} s is *late*"),
    ("reading", f"waits for {DEFAULT_FETCH_LIMITS.empty_timeout_s:g} s"),
    ("reading", f"Up to {WORDS[DEFAULT_FETCH_LIMITS.reads_at_once]} are read at once"),
    ("reading", f"every {DEFAULT_FETCH_LIMITS.poll_s * 1_000:g} ms"),
    ("reading", f"up to {WORDS[STREAMS_MAX]} nodes of Oxia"),
    ("reading", f"{DEFAULT_LIMITS.scan_s:g} s at most"),
    ("reading", f"up to {DEFAULT_LIMITS.records_walked_max:,} records"),
    ("coordination", f"lasts {SESSION_TIMEOUT_MS // 1_000} s beyond"),
    ("coordination", f"{COORDINATOR_SLOTS} slots"),
    ("coordination", f"for up to {CATALOG_LIMITS.topics_cache_age_s:g} s"),
    ("coordination", f"blocks of {BLOCK_IDS:,} ids"),
    ("upkeep", f"every {DEFAULT_LIMITS.producer_pages_sweep_every_s / 60:g} minutes at most"),
    ("upkeep", f"when there are more than {DEFAULT_LIMITS.writers_kept_max}"),
    ("upkeep", f"up to {DEFAULT_LIMITS.pending_entries_max} entries of `pending`"),
    ("upkeep", f"nobody appends for {TidyPolicy().idle_ms // 60_000} minutes"),
    ("upkeep", f"or names more than {WORDS[COMPACTOR_LIMITS.dead_writers_max]}"),
    ("commit", f"nobody appends for {TidyPolicy().idle_ms // 60_000} minutes"),
    ("../glossary", f"at most {DEFAULT_LIMITS.pending_entries_max}"),
    ("../glossary", f"the {COORDINATOR_SLOTS} shares"),
]


@pytest.mark.parametrize(("page", "told"), TOLD, ids=[f"{page}: {told}" for page, told in TOLD])
def test_a_number_is_that_of_the_code(page: str, told: str) -> None:
    assert told in " ".join((PAGES / f"{page}.md").read_text().split())


def test_numbers_that_are_told_in_words() -> None:
    assert PRODUCER_EXPIRATION_MS == 86_400_000, "docs/internals/design/commit.md and upkeep.md say a day"
    assert TRUSTED_POLL_S == 1.0, "docs/internals/design/reading.md says every second"
