"""What code, tests and pages cite is there: documents, their sections, promises, invariants, ADRs and variants of the model."""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from model.variants import ALL
from tests.architecture.citations import Known, anchors_of, missing

ROOT: Final = Path(__file__).parents[2]
PROMISES: Final = (ROOT / "docs/internals/design/promises.md").read_text()
SUFFIXES: Final = {".py", ".md", ".toml", ".yml", ".sh"}
NAMES: Final = {"Makefile", "Dockerfile", "run"}
SAMPLES: Final = Path(__file__).relative_to(ROOT)
"""This file cites what is not there on purpose."""

KNOWN: Final = Known(
    root=ROOT,
    invariants={int(number) for number in re.findall(r"^\| \*\*I(\d+)\*\* \|", PROMISES, re.MULTILINE)},
    promises={int(number) for number in re.findall(r"^(\d+)\. \*\*", PROMISES, re.MULTILINE)},
    adrs={int(path.name[:4]): path.name for path in sorted((ROOT / "docs/internals/adr").glob("[0-9]*.md"))},
    variants=tuple(ALL),
)


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    return [path for path in paths if (path.suffix in SUFFIXES or path.name in NAMES) and path != SAMPLES and (ROOT / path).is_file()]


def test_promises_and_invariants_are_numbered_without_gaps() -> None:
    assert sorted(KNOWN.promises) == list(range(1, 7))
    assert sorted(KNOWN.invariants) == list(range(1, 13))
    assert sorted(KNOWN.adrs) == list(range(1, len(KNOWN.adrs) + 1))


def test_the_readme_makes_the_promises_of_the_design() -> None:
    readme = (ROOT / "README.md").read_text()

    titles = [re.findall(r"^(\d\. \*\*[^*.]+)", page, re.MULTILINE) for page in (readme, PROMISES)]
    assert titles[0] == titles[1]


@pytest.mark.parametrize("folder", sorted({path.parts[0] for path in files()}))
def test_what_is_cited_is_there(folder: str) -> None:
    found = [
        f"{path}: {problem}"
        for path in files()
        if path.parts[0] == folder
        for problem in missing(ROOT / path, (ROOT / path).read_text(), KNOWN)
    ]

    assert not found, "\n".join(found)


def test_code_cites_the_design() -> None:
    cited = {
        page
        for path in files()
        if path.suffix == ".py" and path.parts[0] in {"broker", "storage", "sim", "forebay"}
        for page in re.findall(r"docs/internals/design/(\w+)\.md", (ROOT / path).read_text())
    }

    assert cited == {path.stem for path in (ROOT / "docs/internals/design").glob("*.md")} - {"README", "promises"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see docs/internals/design/nowhere.md", "docs/internals/design/nowhere.md"),
        ("docs/internals/design/commit.md#no-such-section.", "docs/internals/design/commit.md#no-such-section"),
        ("`storage/log/nowhere.py`", "storage/log/nowhere.py"),
        ("`F-ack` and `G7`", "model variant G7"),
        ("docs/internals/adr/0099", "docs/internals/adr/0099"),
        ("(I13)", "I13"),
        ("Invariants I1 to I13", "I13"),
        ("I7 and I14", "I14"),
        ("promise 7", "promise 7"),
        ("(ADR 99)", "ADR 99"),
        ("ADR 1 and 99", "ADR 99"),
        ("[F-nowhere]", "model variant F-nowhere"),
        ("the model `Q7`", "model variant Q7"),
        ("Forebay-nowhere*", "model variant Forebay-nowhere*"),
        ("[commit](docs/internals/design/commit.md#nowhere)", "docs/internals/design/commit.md#nowhere"),
        ("[it](nowhere.md)", "nowhere.md"),
        ("[here](#nowhere)", "#nowhere"),
        ("[ADR 2](docs/internals/adr/0001-one-record-decides.md)", "[ADR 2] leads to docs/internals/adr/0001-one-record-decides.md"),
        ("DESIGN.md", "'DESIGN.md' (name the page and the section in docs/internals/design)"),
    ],
)
def test_a_citation_of_what_is_not_there_is_found(text: str, problem: str) -> None:
    assert problem in list(missing(ROOT / "README.md", text, KNOWN))


@pytest.mark.parametrize(
    "text",
    [
        "Page-aligned",
        "docs/internals/design/commit.md#unknown-outcomes, docs/internals/adr/0009, docs/internals/adr/, docs/guides/deploy.md.",
        "I1, I12 and I5; I1-I12; promises 1 and 5; ADR 0011, ADR 13.",
        "`Forebay-*` F-absent [F-page-key*] model `G0`",
        "[one](https://example.org/docs/nowhere.md) ![a picture](x.svg)",
        "a struct of >16sIQQ, H2I16x, I/O",
    ],
)
def test_a_citation_of_what_is_there_is_not(text: str) -> None:
    assert list(missing(ROOT / "README.md", text, KNOWN)) == []


def test_sections_have_the_anchors_that_readers_see() -> None:
    page = "# A\n## From 1 to 2, say\n### `code` & more\n## A\n```\n# no heading\n```\n## [ADR 1](x.md), again\n"

    assert anchors_of(page) == {"a", "from-1-to-2-say", "code--more", "a-1", "adr-1-again"}
