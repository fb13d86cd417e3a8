"""Writes what is made of the last sweep that was kept, its drawing: `python -m bench.sweep.documents`."""

from pathlib import Path
from typing import Final

import msgspec

from bench.sweep.report import SweepReport

_ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = _ROOT / "bench" / "results" / "sweep.json"
DRAWING: Final = _ROOT / "docs" / "reference" / "load-sweep.svg"


def write_report(report: SweepReport, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_report(file: Path = REPORT) -> SweepReport:
    return msgspec.json.decode(file.read_bytes(), type=SweepReport)


def renew() -> None:
    from bench.sweep.drawing import draw_sweep

    draw_sweep(read_report(), DRAWING)


if __name__ == "__main__":
    renew()
