"""The page of a run: its verdict, and charts with the events on them."""

import json
import re
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest

from forebay.commands.bench.load.folder import POINTS_MAX, chart, short, write_page


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def report(at: float, name: str, done: int) -> dict[str, Any]:
    return {"at": at, "name": name, "done": done, "latency_ms": {"p99": 2.5}}


def page(folder: Path, *faults: str) -> str:
    write_page(folder, title="a <run>", line="reconciled: intent 10", faults=faults, explained=["one & all"])
    return (folder / "index.html").read_text()


def test_a_page_shows_verdict_charts_and_events_and_escapes_what_it_is_given(tmp_path: Path) -> None:
    reports = [report(float(at), name, done) for at in range(3) for name, done in (("producer-0", 10 * at), ("group-g-0", 4 * at))]
    write(tmp_path / "client.jsonl", reports)
    samples = [{"at": at, "name": "broker-1", "rss_bytes": 7e7, "dollars": 0.1, "cpu_s": at / 2} for at in (1.0, 2.0)]
    write(tmp_path / "samples.jsonl", samples)
    write(tmp_path / "events.jsonl", [{"at": 1.5, "what": "kill broker 1 <hard>"}])

    shown = page(tmp_path, "topic t partition 0 offset 4: <gone>")

    assert "<h1>a &lt;run&gt;</h1>" in shown
    assert "offset 4: &lt;gone&gt;" in shown
    assert "one &amp; all" in shown
    drawings = re.findall(r"<svg.*?</svg>", shown, re.DOTALL)
    assert len(drawings) == 6
    for drawing in drawings:
        xml.dom.minidom.parseString(drawing)  # raises for what is not well formed
    assert "kill broker 1 &lt;hard&gt;" in drawings[0]
    assert ">12<" in drawings[2], "20 acknowledged, 8 read"


def test_a_run_without_samples_has_a_page_all_the_same(tmp_path: Path) -> None:
    assert page(tmp_path).count("<p>No samples.</p>") == 6


def test_a_long_line_is_drawn_with_fewer_points() -> None:
    drawn = chart({"a": [(float(at), 1.0) for at in range(5 * POINTS_MAX)]}, [], 0.0)

    (points,) = re.findall(r'<polyline points="([^"]*)"', drawn)
    assert len(points.split()) == POINTS_MAX


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (12, "12"), (1_234, "1.23k"), (35e6, "35M"), (2e9, "2G")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text
