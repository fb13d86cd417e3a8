"""docs/internals/seeds.md is true: what it names is there."""

from pathlib import Path
from typing import Any

import pytest
import typer

from broker.http.routes import PROCESS_PATHS, ROUTES
from forebay.cli import application
from forebay.reference import DOCS, FEATURES, LATER, SeedFeature, renew_page
from process.settings.reference import SETTINGS

ROOT = Path(__file__).parents[2]
ROUTES_THERE = {f"{route.method} {route.path}" for route in ROUTES} | {f"GET {path}" for path in PROCESS_PATHS}


def is_command(words: list[str]) -> bool:
    command: Any = typer.main.get_command(application)
    for word in words:
        command = getattr(command, "commands", {}).get(word)
    return command is not None


@pytest.mark.parametrize("feature", [one for one in FEATURES if one.home not in ("", LATER)], ids=lambda one: f"{one.system}: {one.name}")
def test_a_feature_is_where_the_page_says(feature: SeedFeature) -> None:
    home = feature.home
    if home.startswith("forebay "):
        assert is_command(home.split()[1:])
    elif " " in home:
        assert home in ROUTES_THERE
    else:
        assert home in SETTINGS or (ROOT / home).exists()


def test_what_is_nowhere_has_a_reason_and_no_feature_is_named_twice_of_a_system() -> None:
    assert [one.name for one in FEATURES if not one.home and not one.note] == []
    named = [(one.system, one.name) for one in FEATURES]
    assert len(named) == len(set(named))


def test_the_page_has_the_table() -> None:
    text = (DOCS / "internals" / "seeds.md").read_text()
    assert renew_page(text) == text
