"""The chart beside the page: how each load compares with Kafka, and how long a record is on its way. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bench.beside.chart_data import BarGroup, ChartData, LatencyLine, encoded
from bench.beside.loads import FILES, OURS, S3, S3_30_MS, S3_100_MS, TITLES
from bench.beside.report import number
from bench.processes import KAFKA

INK: Final = "#1d2433"
PALE: Final = "#6b7280"
PAPER: Final = "#fbfaf7"
RULE: Final = "#e3e0d8"
COLOURS: Final = {
    TITLES[KAFKA]: "#6b7280",
    TITLES[FILES]: "#4b6a88",
    TITLES[S3]: "#f0a35a",
    TITLES[S3_30_MS]: "#cf4446",
    TITLES[S3_100_MS]: "#8c2162",
}
_SIZE_INCHES: Final = (10.0, 8.8)
_BAR_HEIGHT: Final = 0.19
_ROOM_RIGHT: Final = 1.16
"""Times the greatest ratio: behind it is its figure."""
_FEW_DECADES: Final = 100
"""Times the least latency: below it 1, 10 and 100 alone would leave the scale without a figure."""
_SALT: Final = "bench.beside"
"""The names of parts in the file are made of it, which are random otherwise."""


def draw_chart(data: ChartData, picture: Path) -> None:
    """An SVG with its data as its description. The same data give the same bytes with the same matplotlib."""
    with mpl.rc_context({"font.family": ["DejaVu Sans"], "svg.hashsalt": _SALT, "svg.fonttype": "path"}):
        figure = drawn(data)
        figure.savefig(picture, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None, "Description": encoded(data)})


def drawn(data: ChartData) -> Figure:
    figure = Figure(figsize=_SIZE_INCHES, facecolor=PAPER)
    ratios, latencies = figure.subplots(2, 1, height_ratios=[max(1, len(data.groups)), 1.7])
    figure.subplots_adjust(left=0.245, right=0.965, top=0.84, bottom=0.045, hspace=0.24)
    _draw_ratios(ratios, data.groups)
    _draw_latencies(latencies, data.lines)
    figure.text(0.025, 0.952, "Forebay beside Apache Kafka", fontsize=17, color=INK, weight="bold")
    figure.text(0.025, 0.923, data.said, fontsize=9.5, color=PALE)
    return figure


def _draw_ratios(axes: Axes, groups: Sequence[BarGroup]) -> None:
    _quiet(axes, "rate in ratio to Kafka's in the same round: median, least and greatest")
    greatest = max((bar.times_kafka.max for group in groups for bar in group.bars), default=1.0)
    axes.set_xlim(0, max(1.2, greatest * _ROOM_RIGHT))
    titles = [TITLES[name] for name in OURS]
    for row, group in enumerate(groups):
        for bar in group.bars:
            place = row + (titles.index(bar.target) - (len(titles) - 1) / 2) * _BAR_HEIGHT
            found = bar.times_kafka
            axes.barh(place, found.median, height=0.86 * _BAR_HEIGHT, color=COLOURS[bar.target])
            axes.plot([found.min, found.max], [place, place], color=INK, linewidth=0.9, solid_capstyle="butt")
            axes.annotate(
                number(found.median),
                (max(found.median, found.max), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=PALE,
            )
    axes.axvline(1.0, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=0.8)
    axes.annotate(
        "as Kafka", (1.0, 0.0), xycoords=("data", "axes fraction"), xytext=(4, 4), textcoords="offset points", fontsize=8, color=INK
    )
    axes.set_yticks(range(len(groups)), [group.load for group in groups], color=INK, fontsize=9)
    axes.set_ylim(len(groups) - 0.45, -0.55)
    handles = [mpl.patches.Patch(color=COLOURS[title], label=title) for title in titles]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.045), ncols=len(handles), frameon=False, fontsize=9, labelcolor=INK
    )


def _draw_latencies(axes: Axes, lines: Sequence[LatencyLine]) -> None:
    _quiet(axes, "200 records a second, from end to end: p50 (●) and p99 (○) in ms, on a logarithmic scale")
    for row, line in enumerate(lines):
        colour = COLOURS[line.target]
        p50, p99 = line.p50_ms.median, line.p99_ms.median
        axes.plot([p50, p99], [row, row], color=colour, linewidth=2.2, solid_capstyle="round")
        axes.plot([p50], [row], marker="o", markersize=7, color=colour)
        axes.plot([p99], [row], marker="o", markersize=7, color=colour, markerfacecolor=PAPER, markeredgewidth=1.8)
        for value, side, aligned in ((p50, -8, "right"), (p99, 8, "left")):
            axes.annotate(
                number(value), (value, row), xytext=(side, 0), textcoords="offset points", va="center", ha=aligned, fontsize=8, color=PALE
            )
    axes.set_xscale("log")
    least = min((line.p50_ms.median for line in lines), default=1.0)
    greatest = max((line.p99_ms.median for line in lines), default=10.0)
    axes.set_xlim(least / 2, greatest * 2)
    axes.set_yticks(range(len(lines)), [line.target for line in lines], color=INK, fontsize=9)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if greatest < _FEW_DECADES * least else (1,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _quiet(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9.5, color=PALE, loc="left", pad=8)
    axes.set_facecolor(PAPER)
    axes.tick_params(length=0, which="both", labelsize=8.5, labelcolor=PALE)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
