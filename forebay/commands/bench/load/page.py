"""`index.html` of a run: the verdict, what was explained, and charts with the events on them. One file, without scripts."""

import html
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

WIDTH: Final = 900
HEIGHT: Final = 180
POINTS_MAX: Final = 1_000
"""A longer line is drawn with every second point, or fewer."""
_LEFT: Final = 70
_COLOURS: Final = ("#4b6a88", "#f0a35a", "#cf4446", "#8c2162", "#3f8f6b", "#6b7280", "#b08d2f", "#5a4fcf")

Points = list[tuple[float, float]]
Series = Mapping[str, Points]

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1d2433;background:#fbfaf7;max-width:960px;margin:2em auto;padding:0 1em}"
    "code{font-size:1.05em}.bad{color:#b3261e}.good{color:#2e6b4f}li{margin:.2em 0}text{font:11px system-ui,sans-serif;fill:#6b7280}"
)


def write_page(folder: Path, *, title: str, line: str, faults: Sequence[str], explained: Sequence[str]) -> None:
    """From the files of the run in `folder`."""
    reports, samples = _read(folder / "client.jsonl"), _read(folder / "samples.jsonl")
    events = [(float(one["at"]), str(one["what"])) for one in _read(folder / "events.jsonl")]
    began = min((float(one["at"]) for one in (*reports, *samples)), default=0.0)
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="{"bad" if faults else "good"}"><code>{html.escape(line)}</code></p>',
        _list("What does not agree", faults),
        _list("What is explained", explained),
    ]
    for name, series in _charts(reports, samples).items():
        sections.append(f"<h2>{html.escape(name)}</h2>{chart(series, events, began)}")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    (folder / "index.html").write_text(head + "\n".join(sections) + "</html>\n", encoding="utf-8")


def chart(series: Series, events: Sequence[tuple[float, str]], began: float) -> str:
    """An SVG of lines over the seconds since `began`, each event a vertical line with its name."""
    points = [point for line in series.values() for point in line]
    if not points:
        return "<p>No samples.</p>"
    last = max(max(at for at, _ in points) - began, 1e-9)
    top = max(1e-9, *(value for _, value in points))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 40}" width="100%" role="img">']
    parts.append(f'<path d="M{_LEFT} 10V{HEIGHT}H{WIDTH}" fill="none" stroke="#c9c4b8"/>')
    parts.append(
        f'<text x="{_LEFT - 6}" y="18" text-anchor="end">{short(top)}</text><text x="{_LEFT - 6}" y="{HEIGHT}" text-anchor="end">0</text>'
    )
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{last:.0f} s</text>')

    def across(at: float) -> float:
        return _LEFT + (WIDTH - _LEFT) * (at - began) / last

    for at, what in events:
        if at - began <= last:
            x = across(at)
            parts.append(f'<path d="M{x:.1f} 10V{HEIGHT}" stroke="#b3261e" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="{x + 3:.1f}" y="18">{html.escape(what)}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = line[:: max(1, -(-len(line) // POINTS_MAX))]
        way = " ".join(f"{across(at):.1f},{HEIGHT - (HEIGHT - 20) * value / top:.1f}" for at, value in drawn)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x = _LEFT + number % 6 * 135
        y = HEIGHT + 28 + number // 6 * 12
        parts.append(f'<text x="{x}" y="{y}" style="fill:{colour}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def short(value: float) -> str:
    """A number in a few characters: 1.2k, 35M."""
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= least:
            return f"{value / least:.3g}{unit}"
    return f"{value:.3g}"


def _charts(reports: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    done, latency = defaultdict[str, Points](list), defaultdict[str, Points](list)
    rss, dollars, cpu = defaultdict[str, Points](list), defaultdict[str, Points](list), defaultdict[str, Points](list)
    for one in reports:
        done[one["name"]].append((one["at"], one["done"]))
        if one["latency_ms"]:
            latency[one["name"]].append((one["at"], one["latency_ms"]["p99"]))
    for one in samples:
        for key, series in (("rss_bytes", rss), ("dollars", dollars), ("cpu_s", cpu)):
            if key in one:
                series[one["name"]].append((one["at"], one[key]))
    return {
        "Records a second, acknowledged or read": {name: _rates(line) for name, line in done.items()},
        "Latency of acknowledgements, p99 (ms)": latency,
        "Records acknowledged and not yet read, by group": _behind(reports),
        "Resident memory (bytes)": rss,
        "Processors in use": {name: _rates(line) for name, line in cpu.items()},
        "Dollars of requests, at S3's prices": dollars,
    }


def _behind(reports: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Clients report one after the other, so a group may seem to be ahead for a moment. Records that it reads again count again."""
    done: dict[str, int] = {}
    found = defaultdict[str, Points](list)
    for one in reports:
        name = str(one["name"])
        done[name] = one["done"]
        if name.startswith("group-"):
            group = name.rpartition("-")[0]
            acked = sum(count for client, count in done.items() if client.startswith("producer-"))
            read = sum(count for client, count in done.items() if client.rpartition("-")[0] == group)
            found[group].append((one["at"], max(0, acked - read)))
    return found


def _rates(line: Points) -> Points:
    return [(at, max(0.0, value - before) / (at - earlier)) for (earlier, before), (at, value) in itertools.pairwise(line) if at > earlier]


def _list(title: str, lines: Iterable[str]) -> str:
    shown = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{shown or '<li>nothing</li>'}</ul>"


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
