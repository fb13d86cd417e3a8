"""Measure how long a scrape of a full page of metrics holds the event loop.

    python -m bench.scrape --series 10000 --scrapes 50

Prints JSON in its last line: milliseconds of CPU of this process between two turns of the loop, the longest of each page that is made, and
of times without one. CPU, because a machine that does other things, too, takes both threads off its processors in between.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Final

import uvloop

from forebay.processes.serve import GC_THRESHOLDS
from process.http.scrape import AGE_MAX_S, MetricsPage, render_text
from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from runtime.telemetry import Metric, Telemetry

TOPICS: Final = Metric("forebay_bench_bytes_total", "Bytes by topic", ("topic", "direction"))
QUIET_S: Final = 0.1


async def longest_turn_s(work: Coroutine[object, object, object]) -> float:
    """Turns come as fast as they can until `work` is done."""
    async with asyncio.TaskGroup() as group:
        done = group.create_task(work)
        longest_s, last_s = 0.0, time.process_time()
        while not done.done():
            await asyncio.sleep(0)
            now_s = time.process_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


async def measure(series: int, scrapes: int) -> dict[str, object]:
    telemetry = Telemetry()
    telemetry.table(TOPICS, lambda: (((f"a-topic-of-this-broker-{number}", "in"), float(number)) for number in range(series)))
    blocking = ThreadBlocking(threads=1, name="bench")
    page = MetricsPage(render_text, telemetry.registry, blocking=blocking, clock=SystemClock())
    with_scrape, without = [], []
    for _ in range(scrapes):
        without.append(await longest_turn_s(asyncio.sleep(QUIET_S)) * 1_000)
        await asyncio.sleep(AGE_MAX_S)
        with_scrape.append(await longest_turn_s(page.body()) * 1_000)
    blocking.close()
    lines = (await page.body()).count(b"\n")
    return {"lines": lines, "scrape_ms": _summary(with_scrape), "no_scrape_ms": _summary(without)}


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "max": round(max(values), 2)}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scrape", description=__doc__)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--scrapes", type=int, default=30)
    asked = parser.parse_args(words)
    gc.set_threshold(*GC_THRESHOLDS)
    print(json.dumps(uvloop.run(measure(asked.series, asked.scrapes))))


if __name__ == "__main__":
    main(sys.argv[1:])
