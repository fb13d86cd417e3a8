"""The drawing of the sweep shows what the report says that is kept beside it."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Final

from bench.beside.loads import FILES, S3
from bench.sweep.documents import DRAWING, REPORT, read_report
from bench.sweep.report import encoded

DESCRIPTION: Final = ".//{http://purl.org/dc/elements/1.1/}description"


def test_the_drawing_shows_what_was_measured() -> None:
    found = ElementTree.parse(DRAWING).getroot().find(DESCRIPTION)

    assert found is not None
    assert found.text == encoded(read_report()), "run `make docs`"


def test_the_report_is_one_of_both_stores_and_names_no_place_of_the_machine() -> None:
    report = read_report()

    assert [(curve.target, curve.partitions) for curve in report.curves] == [(FILES, 1), (FILES, 12), (S3, 1), (S3, 12)]
    assert all(curve.points for curve in report.curves)
    assert re.findall(r'"(?:/|~)[^"]*"|--out|--folder', REPORT.read_text(encoding="utf-8")) == []
