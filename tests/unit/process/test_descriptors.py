import resource
from pathlib import Path

import pytest
import structlog

from process import descriptors
from process.accepting import HTTP_CONNECTIONS_MAX, PEER_CONNECTIONS_MAX
from process.descriptors import RESERVED, RESERVED_FOR_REMOTE_STORES, fit_connections, reserve_of
from process.settings.errors import EXIT_USAGE, StartError
from process.settings.model import Settings

HTTP = 256 - HTTP_CONNECTIONS_MAX
"""What `http.max_connections` takes beside the reserve of a broker that serves no streams."""
HELD = RESERVED + HTTP
UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """The limit of open files of a process that may raise it up to `allowed`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, soft: int, hard: int, allowed: int | None = None) -> None:
        self.soft, self.hard, self.allowed = soft, hard, allowed
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda which: (self.soft, self.hard))
        monkeypatch.setattr(descriptors.resource, "setrlimit", self._set)

    def _set(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        soft, hard = limits
        if self.allowed is not None and (soft == UNLIMITED or soft > self.allowed):
            raise ValueError("current limit exceeds maximum limit")
        self.soft, self.hard = soft, hard


def settings(max_connections: int = 2_000, **stores: str) -> Settings:
    return Settings(
        kafka={"max_connections": max_connections},
        storage={"url": stores.get("storage", "memory://")},
        metadata={"url": stores.get("metadata", "memory://")},
    )


@pytest.mark.parametrize(("hard", "raised"), [(4_096, 4_096), (UNLIMITED, UNLIMITED)])
def test_the_soft_limit_is_raised_to_the_hard_one(hard: int, raised: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, soft=256, hard=hard)
    wanted = settings()

    assert fit_connections(wanted) is wanted
    assert (limits.soft, limits.hard) == (raised, hard)


def test_where_the_hard_limit_cannot_be_had_what_is_needed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, soft=256, hard=UNLIMITED, allowed=10_240)
    wanted = settings()

    assert fit_connections(wanted) is wanted
    assert limits.soft == 2_000 + HELD


def test_a_limit_that_suffices_exactly_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, soft=2_000 + HELD, hard=2_000 + HELD)
    with structlog.testing.capture_logs() as logged:
        assert fit_connections(settings()).kafka.max_connections == 2_000

    assert logged == []


def test_a_limit_that_is_too_low_lowers_the_number_of_connections_and_is_told_with_both_numbers_and_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Limits(monkeypatch, soft=256, hard=256)
    wanted = settings()
    with structlog.testing.capture_logs() as logged:
        lowered = fit_connections(wanted)

    left = 256 - RESERVED
    assert lowered.kafka.max_connections == left - left // 4
    assert lowered.http.max_connections == HTTP_CONNECTIONS_MAX + left // 4, "both give way"
    assert lowered.storage == wanted.storage
    assert lowered.kafka.listeners == wanted.kafka.listeners
    (line,) = logged
    assert (line["event"], line["log_level"]) == ("open_files_limited", "warning")
    assert (line["limit"], line["max_connections"], line["connections"]) == (256, 2_000, left - left // 4)
    for fix in (f"to {2_000 + RESERVED + left // 4} ", "ulimit -n", "LimitNOFILE"):
        assert fix in line["fix"]


@pytest.mark.parametrize(
    ("stores", "reserve"),
    [
        ({"storage": "s3://bucket/p?region=eu-1", "metadata": "oxia://h:6648/n"}, RESERVED + RESERVED_FOR_REMOTE_STORES),
        ({"storage": "file:///d/o", "metadata": "sqlite:////d/meta.db"}, RESERVED),
    ],
)
def test_stores_on_other_machines_need_a_larger_reserve(stores: dict[str, str], reserve: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, soft=1_024, hard=1_024)

    assert fit_connections(settings(**stores)).kafka.max_connections == 1_024 - reserve - min(HTTP, (1_024 - reserve) // 4)


def test_requests_to_and_of_brokers_of_the_zone_have_descriptors_of_their_own() -> None:
    alone = Settings.model_validate({"broker": {"rack": "a"}})
    together = Settings.model_validate({"broker": {"rack": "a"}, "storage": {"zone_cache": True}})

    assert reserve_of(together) == reserve_of(alone) + 2 * PEER_CONNECTIONS_MAX


def test_a_limit_that_leaves_no_connection_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, soft=RESERVED, hard=RESERVED)

    with pytest.raises(StartError, match=rf"may open {RESERVED} files.* Raise the limit to {2_000 + RESERVED} \(ulimit -n") as refusal:
        fit_connections(settings())
    assert refusal.value.exit_code == EXIT_USAGE


def test_the_page_states_the_reserve() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "deploy.md").read_text()

    assert f"{RESERVED} descriptors" in page
    assert f"{RESERVED + RESERVED_FOR_REMOTE_STORES} with S3 or Oxia" in page
