"""Scaling by simulation: its section of the page shows what the report says that is kept beside it."""

import re

from bench.scale.documents import PAGE, REPORT, read_report
from bench.scale.laws import MISS_MAX
from bench.scale.loads import LEADERS, LOADS
from bench.scale.page import renewed


def test_the_page_says_what_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page, read_report()) == page, "run `make docs`"


def test_the_report_is_one_of_every_load_under_every_strategy() -> None:
    assert [(case.leader, case.load) for case in read_report().cases] == [(leader, load.name) for leader in LEADERS for load in LOADS]


def test_no_law_of_the_report_misses_by_more_than_it_may() -> None:
    misses = [law.miss_max for case in read_report().cases for law in case.laws if law.miss_max is not None]

    assert len(misses) > 20
    assert max(misses) <= MISS_MAX


def test_the_report_names_no_place_of_the_machine_it_was_made_on() -> None:
    assert re.findall(r'"(?:/|~)[^"]*"|--out', REPORT.read_text(encoding="utf-8")) == []
