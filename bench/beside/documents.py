"""Writes what is made of the last report that was kept, the chart and the section of the page: `python -m bench.beside.documents`."""

from pathlib import Path
from typing import Final

import msgspec

from bench.beside.chart_data import chart_data
from bench.beside.page import CHART_NAME, renewed
from bench.beside.report import BesideReport

_ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = _ROOT / "bench" / "results" / "beside.json"
PAGE: Final = _ROOT / "docs" / "reference" / "benchmarks.md"
CHART: Final = PAGE.with_name(CHART_NAME)


def write_report(report: BesideReport, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_report(file: Path = REPORT) -> BesideReport:
    return msgspec.json.decode(file.read_bytes(), type=BesideReport)


def renew() -> None:
    """Raise `NoPlace` where the page has no marks, before anything is written."""
    from bench.beside.chart import draw_chart

    report = read_report()
    page = renewed(PAGE.read_text(encoding="utf-8"), report)
    draw_chart(chart_data(report), CHART)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    renew()
