"""Every decision in docs/internals/adr says when it was made, what its status is, and what was rejected."""

import datetime
import re
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.citations import anchors_of

FOLDER: Final = Path(__file__).parents[2] / "docs/internals/adr"
DECISIONS: Final = sorted(FOLDER.glob("[0-9]*.md"))
STATUS: Final = re.compile(r"^Status: (?:accepted|rejected|superseded by \[ADR \d+\])", re.MULTILINE)


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_a_date_a_status_and_what_was_rejected(path: Path) -> None:
    page = path.read_text()
    title = re.match(r"# (\d+)\. .+\n", page)
    dates = re.findall(r"^Date: (.+)$", page, re.MULTILINE)

    assert title is not None
    assert int(title[1]) == int(path.name[:4])
    assert len(dates) == 1
    assert datetime.date.fromisoformat(dates[0]) > datetime.date(2026, 1, 1)
    assert len(STATUS.findall(page)) == 1
    assert "rejected" in anchors_of(page)
    assert len(page.split("\n## Rejected\n")[1].split("\n## ")[0].strip()) > 50, "a way that was not taken, and why"


def test_the_index_lists_every_decision() -> None:
    found = re.findall(r"^\| \[(\d+)\]\((\S+)\) \| (.+) \| (\S+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)

    assert [name for _, name, _, _ in found] == [path.name for path in DECISIONS]
    for number, name, title, date in found:
        page = (FOLDER / name).read_text()
        assert page.startswith(f"# {number}. {title}\n")
        assert f"\nDate: {date}\n" in page


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_that_is_replaced_says_so(path: Path) -> None:
    status = re.search(r"^Status: (.*?)\n\n", path.read_text(), re.MULTILINE | re.DOTALL)
    assert status is not None

    for sentence in re.findall(r"(?:^|\. )(Replaces [^.]*\[ADR \d+\]\(\S+\))", status[1]):
        for replaced in re.findall(r"\]\((\S+)\)", sentence):
            other = re.search(r"^Status: (.*?)\n\n", (FOLDER / replaced).read_text(), re.MULTILINE | re.DOTALL)
            assert other is not None
            assert path.name in other[1], f"the status of {replaced} does not name {path.name}"
