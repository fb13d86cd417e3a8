"""The walks of ARCHITECTURE.md are true: real requests to a broker enter the files that the page lists, in that order, and no others."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.architecture import walking
from tests.architecture.walking import Walk

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILES_MAX: Final = {"A produced batch": 18, "A fetch": 20, "A JoinGroup": 15}
"""Without the stores and runtime/. A feature that puts another file into a walk raises the number in its commit, with the reason."""
STORES: Final = ("storage/objects/memory.py", "storage/metadata/memory.py")
WALKS: Final = {"A produced batch": walking.produce, "A fetch": walking.fetch, "A JoinGroup": walking.join_group}


def section(title: str) -> str:
    return re.split(r"^##", PAGE.partition(f"\n### {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def listed(title: str) -> list[str]:
    return re.findall(r"^\d+\. `([^`]+\.py)` ", section(title), re.MULTILINE)


ON_THE_WAY: Final = frozenset(re.findall(r"`([^`]+\.py)`", section("On the way")))


@pytest.mark.parametrize("title", WALKS)
def test_every_step_of_a_walk_names_another_file(title: str) -> None:
    steps = re.findall(r"^(\d+)\. ", section(title), re.MULTILINE)
    files = listed(title)

    assert steps == [str(number + 1) for number in range(len(files))]
    assert len(set(files)) == len(files) > 0


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_is_short_enough_to_be_read(title: str) -> None:
    files = [file for file in listed(title) if file not in STORES and not file.startswith("runtime/")]

    assert len(files) <= FILES_MAX[title]


def test_every_file_named_exists() -> None:
    files = ON_THE_WAY.union(*map(listed, WALKS))

    assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize(("title", "walk"), WALKS.items())
async def test_a_request_enters_the_files_of_its_walk_in_their_order_and_no_others(title: str, walk: Callable[[], Awaitable[Walk]]) -> None:
    entered, files = (await walk()).files, listed(title)

    assert [file for file in entered if file in files] == files
    assert [file for file in entered if file not in files and file not in ON_THE_WAY] == []


async def test_every_file_on_the_way_is_passed_by_some_walk() -> None:
    passed = {file for walk in WALKS.values() for file in (await walk()).files}

    assert passed >= ON_THE_WAY
