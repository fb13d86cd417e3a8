"""The sweep as a drawing. Needs matplotlib."""

from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.beside.chart import COLOURS, INK, PALE, PAPER, RULE
from bench.beside.loads import TITLES
from bench.sweep.report import SweepReport, encoded

_SIZE_INCHES: Final = (10.0, 5.2)
_SALT: Final = "bench.sweep"


def draw_sweep(report: SweepReport, picture: Path) -> None:
    """An SVG with its data as its description. The same data give the same bytes with the same matplotlib."""
    with mpl.rc_context({"font.family": ["DejaVu Sans"], "svg.hashsalt": _SALT, "svg.fonttype": "path"}):
        figure = Figure(figsize=_SIZE_INCHES, facecolor=PAPER)
        p50, p99 = figure.subplots(1, 2, sharey=True)
        figure.subplots_adjust(left=0.07, right=0.975, top=0.8, bottom=0.12, wspace=0.06)
        _draw(p50, report, "p50_ms", "p50")
        _draw(p99, report, "p99_ms", "p99")
        figure.text(0.025, 0.93, "Acknowledgement by load, 1 KiB records", fontsize=15, color=INK, weight="bold")
        figure.text(0.025, 0.885, f"ms and MB/s on logarithmic scales, {report.started_at[:10]}", fontsize=9.5, color=PALE)
        p50.legend(loc="upper left", frameon=False, fontsize=8.5, labelcolor=INK)
        figure.savefig(picture, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None, "Description": encoded(report)})


def _draw(axes: Axes, report: SweepReport, name: str, title: str) -> None:
    axes.set_title(title, fontsize=9.5, color=PALE, loc="left", pad=8)
    axes.set_facecolor(PAPER)
    for curve in report.curves:
        axes.plot(
            [point.mb_per_s for point in curve.points],
            [getattr(point, name) for point in curve.points],
            label=curve.title,
            color=COLOURS[TITLES[curve.target]],
            linestyle="-" if curve.partitions == 1 else "--",
            marker="o",
            markersize=3.5,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(length=0, which="both", labelsize=8.5, labelcolor=PALE)
    axes.grid(color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
