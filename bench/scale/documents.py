"""Writes the section of the page that is made of the last report that was kept: `python -m bench.scale.documents`."""

from pathlib import Path
from typing import Final

import msgspec

from bench.scale.page import renewed
from bench.scale.report import ScaleReport

_ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = _ROOT / "bench" / "results" / "scale.json"
PAGE: Final = _ROOT / "docs" / "reference" / "benchmarks.md"


def write_report(report: ScaleReport, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_report(file: Path = REPORT) -> ScaleReport:
    return msgspec.json.decode(file.read_bytes(), type=ScaleReport)


def renew() -> None:
    """Raise `NoPlace` where the page has no marks, before anything is written."""
    page = renewed(PAGE.read_text(encoding="utf-8"), read_report())
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    renew()
