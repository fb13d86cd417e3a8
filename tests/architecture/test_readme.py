"""What the README says can be looked up: figures in docs/reference/benchmarks.md, numbers in the code, files, the drawing."""

import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

from broker.protocol import apis

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
DRAWING: Final = ROOT / "docs" / "internals" / "drawings" / "architecture.py"


def test_the_drawing_is_what_its_script_draws() -> None:
    drawn: str = runpy.run_path(str(DRAWING))["drawing"]()

    assert DRAWING.with_suffix(".svg").read_text(encoding="utf-8") == drawn, "run `make docs`"


def test_the_drawing_is_well_formed_and_all_of_it_is_inside() -> None:
    root = ElementTree.parse(DRAWING.with_suffix(".svg")).getroot()
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert int(shape.attrib.get("x", 0)) + int(shape.attrib["width"]) <= width
        assert int(shape.attrib.get("y", 0)) + int(shape.attrib["height"]) <= height


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def figures_of(row: str) -> set[str]:
    return set(re.findall(r"(?<![\d.,])\d+(?:\.\d+)?(?![\d.])", row.partition(" | ")[2]))


ROWS: Final = {
    "200 small records/s, end to end": ("200 records a second, from end to end, p50, ms", "200 records a second, from end to end, p99, ms"),
    "10 MB/s of 1 KiB records, produce": ("10 MB/s, 250 ms interval",),
    "produce 1 KiB records": ("write 1 KiB records, CPU s/GiB",),
    "read 1 KiB records": ("read 1 KiB records, CPU s/GiB",),
    "read from the tail cache": ("read from the tail cache",),
    "read uncompacted history": ("read what is not compacted",),
    "compact, 500 partitions": ("compact, CPU of the process, its start included",),
}
"""The rows of the page from which a row of the README has its figures."""


def test_the_figures_are_those_of_the_benchmarks_page() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    numbers = README[README.index("## Numbers") : README.index("**A month**")]
    rows = {
        row[2:].partition(" | ")[0]: re.sub(r"\| [\d-]{10} \|", "|", row)
        for row in numbers.splitlines()
        if re.match(r"\| [^|]*\|.*\d", row)
    }
    measured = {row[2:].partition(" | ")[0]: row for row in page.splitlines() if row.startswith("| ")}
    rows = {name: row for name, row in rows.items() if name not in {"load", "work"}}

    assert rows.keys() == ROWS.keys()
    for name, row in rows.items():
        assert figures_of(row)
        assert figures_of(row) <= set[str]().union(*(figures_of(measured[one]) for one in ROWS[name])), name
    assert set(re.findall(r"\d{4}-\d\d-\d\d", numbers)) <= set(re.findall(r"\d{4}-\d\d-\d\d", page))


def test_the_number_of_apis_is_that_of_the_code() -> None:
    assert f"[{len(apis.APIS)} APIs]" in README
