"""The delays as a picture: carriers from above by the number of their flights, hours of the day from left to right."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

_INK: Final = "#1d2433"
_PALE: Final = "#6b7280"
_PAPER: Final = "#fbfaf7"
_EMPTY: Final = "#f0eee8"
_SCALE: Final = ("#fdf3d8", "#f9c97c", "#ee8a4a", "#cf4446", "#8c2162", "#3f1654")
"""From no delay to a long one."""
_BARS: Final = "#4b6a88"
_MINUTES_MAX: Final = 45
_FLIGHTS_MIN: Final = 20
"""A mean of fewer says nothing about an hour."""
_SIZE_INCHES: Final = (11.0, 6.4)
_DPI: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyDelay:
    """`hour` of the day, 0 to 23; `mean_delay` in minutes, None where nothing departed."""

    carrier: str
    hour: int
    flights: int
    mean_delay: float | None


def draw_delays(found: Sequence[HourlyDelay], picture: Path) -> None:
    """Written at once or not at all. Raise `OSError`."""
    mpl.rcParams["font.family"] = ["DejaVu Sans"]
    figure = Figure(figsize=_SIZE_INCHES, facecolor=_PAPER)
    _draw(figure, found)
    fresh = picture.with_name(f".{picture.name}")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(fresh, dpi=_DPI, format="png", facecolor=_PAPER)
    fresh.replace(picture)


def _draw(figure: Figure, found: Sequence[HourlyDelay]) -> None:
    flights: dict[str, int] = {}
    for one in found:
        flights[one.carrier] = flights.get(one.carrier, 0) + one.flights
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    hours = list(range(min((one.hour for one in found if one.flights >= _FLIGHTS_MIN), default=0), 24))
    grid = np.full((len(carriers), len(hours)), np.nan)
    for one in found:
        if one.mean_delay is not None and one.flights >= _FLIGHTS_MIN and one.hour in hours:
            grid[carriers.index(one.carrier), hours.index(one.hour)] = one.mean_delay
    heat, bars = figure.subplots(1, 2, width_ratios=[5, 1], sharey=True)
    figure.subplots_adjust(left=0.125, right=0.965, top=0.80, bottom=0.17, wspace=0.04)
    colours = LinearSegmentedColormap.from_list("delay", _SCALE).with_extremes(bad=_EMPTY)
    image = heat.pcolormesh(np.ma.masked_invalid(grid), cmap=colours, vmin=0, vmax=_MINUTES_MAX, edgecolors=_PAPER, linewidth=1.5)
    heat.invert_yaxis()
    heat.set_yticks(np.arange(len(carriers)) + 0.5, carriers, color=_INK, fontsize=9.5)
    heat.set_xticks(np.arange(len(hours)) + 0.5, [f"{hour}" for hour in hours], color=_INK, fontsize=9)
    heat.set_xlabel("scheduled departure, hour of the day in New York", color=_PALE, fontsize=9, labelpad=6)
    bars.barh(np.arange(len(carriers)) + 0.5, [flights[carrier] for carrier in carriers], height=0.62, color=_BARS)
    for row, carrier in enumerate(carriers):
        bars.text(flights[carrier], row + 0.5, f" {flights[carrier]:,}", va="center", ha="left", fontsize=8, color=_PALE)
    bars.set_xlim(0, 1.45 * max(flights.values(), default=1))
    bars.set_xticks([])
    bars.set_title("flights", fontsize=9, color=_PALE, loc="left", pad=6)
    for axes in (heat, bars):
        axes.set_facecolor(_PAPER)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    scale = figure.colorbar(image, cax=figure.add_axes((0.125, 0.075, 0.25, 0.018)), orientation="horizontal", extend="max")
    scale.outline.set_visible(False)
    scale.ax.tick_params(length=0, labelsize=8, labelcolor=_PALE)
    scale.set_label("mean departure delay, minutes", color=_PALE, fontsize=8.5, labelpad=2)
    total = sum(flights.values())
    figure.text(0.02, 0.925, "When flights from New York leave late", fontsize=17, color=_INK, weight="bold")
    figure.text(
        0.02,
        0.875,
        f"{total:,} flights of 2013, written to Forebay as Kafka records and summed up by Spark meanwhile, though a broker was killed",
        fontsize=9.5,
        color=_PALE,
    )
