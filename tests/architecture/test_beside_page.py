"""The comparison with Apache Kafka: its section of the page and its chart show what the report says that is kept beside them."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Final

from bench.beside.chart_data import chart_data, encoded
from bench.beside.documents import CHART, PAGE, REPORT, read_report
from bench.beside.loads import LOADS, TARGETS
from bench.beside.page import renewed
from bench.beside.report import load_report

DESCRIPTION: Final = ".//{http://purl.org/dc/elements/1.1/}description"


def test_the_page_says_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page, read_report()) == page, "run `make docs`"


def test_the_chart_shows_what_was_measured() -> None:
    found = ElementTree.parse(CHART).getroot().find(DESCRIPTION)

    assert found is not None
    assert found.text == encoded(chart_data(read_report())), "run `make docs`"


def test_the_report_is_one_of_every_load_on_every_target() -> None:
    report = read_report()

    assert report.failure is None
    assert [load.name for load in report.loads] == [load.name for load in LOADS]
    for load in report.loads:
        assert [(target.name, len(target.runs)) for target in load.targets] == [(name, report.repeats) for name in TARGETS]


def test_the_medians_of_the_report_are_those_of_its_runs() -> None:
    report = read_report()

    for load, found in zip(LOADS, report.loads, strict=True):
        runs = {target.name: target.runs for target in found.targets}
        again = load_report(load, runs, report.scale)
        assert [target.summary for target in again.targets] == [target.summary for target in found.targets]


def test_the_report_names_no_place_of_the_machine_it_was_made_on() -> None:
    assert re.findall(r'"(?:/|~)[^"]*"|--out|--folder', REPORT.read_text(encoding="utf-8")) == []
