"""Metadata of 100 topics of ten partitions each, and how long such an answer keeps others waiting."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from bench import quantiles, wire
from bench.cases.case import Case, Plan, fresh_broker
from bench.cases.many_clients import PACED_S, Load, Loaded, latencies, settings_of
from bench.clients import create_served_topics
from bench.metadata_wire import METADATA_VERSION, metadata_request
from bench.pacing import Schedule, paced
from bench.processes import HOST, Target
from bench.quantiles import P50
from bench.results import CaseResult, Fact, Run
from bench.stores import DISK, KAFKA, NATIVE
from bench.wire import Driver, Refused

TOPICS: Final = 100
PARTITIONS: Final = 10
NAMES: Final = tuple(f"described-{number:03}" for number in range(TOPICS))
CLIENTS: Final = 8
PACED_PER_S: Final = 20
BYSTANDER_PER_S: Final = 200
HELD_REQUESTS: Final = 200
HELD_SHAPES: Final = {"loop_held": (TOPICS, PARTITIONS), "loop_held_by_topics": (TOPICS * PARTITIONS, 1)}
"""Topics, and partitions of each."""
GOALS: Final = {f"{name}_max_ms": 5.0 for name in HELD_SHAPES}
HELD_WITHIN_S: Final = 120.0

_API_VERSIONS: Final = 18


def describing(names: Sequence[str] | None) -> Load:
    """Metadata of these topics, or of all."""
    frame = metadata_request(names)
    least_bytes = TOPICS * PARTITIONS * 20

    def check(answer: bytes) -> None:
        if len(answer) < least_bytes or any(topic.encode() not in answer for topic in (NAMES[0], NAMES[-1])):
            raise Refused(f"metadata of other topics than asked for: bytes={len(answer)}")

    return Load(ask=lambda _connection, _number: frame, check=check, requests=800, paced_per_s=PACED_PER_S, clients=CLIENTS)


def _named(plan: Plan, store: str) -> CaseResult:
    return _run(plan, store, name="metadata-1000", names=NAMES, what="named")


def _all(plan: Plan, store: str) -> CaseResult:
    return _run(plan, store, name="metadata-1000-all", names=None, what="all there are")


def _run(plan: Plan, store: str, *, name: str, names: Sequence[str] | None, what: str) -> CaseResult:
    load = describing(names)
    frame = load.ask(0, 0)
    with fresh_broker(plan, store, {}) as (_, target):
        create_served_topics(target.bootstrap, NAMES, PARTITIONS)
        with contextlib.closing(Loaded(target, load, plan)) as loaded:
            loaded.warm_up()
            runs = []
            for _ in range(plan.repeats):
                run = loaded.run()
                facts = {**run.facts, "answer_bytes": len(loaded.driver.ask(frame)), **_bystander(plan, target, frame)}
                if store != KAFKA:
                    for held, (topics, partitions) in HELD_SHAPES.items():
                        facts |= _held(plan, name=held, topics=topics, partitions=partitions, are_named=names is not None)
                runs.append(Run(run.broker, None, run.peak_rss_bytes, facts))
    settings: dict[str, Fact] = {**settings_of(load), "topics": TOPICS, "partitions_per_topic": PARTITIONS}
    described = (
        f"Metadata v{METADATA_VERSION} of {TOPICS} topics of {PARTITIONS} partitions, {what}; bystander: ApiVersions on another connection"
    )
    return CaseResult(name, store, described, settings, runs, GOALS if store != KAFKA else {})


def _bystander(plan: Plan, target: Target, frame: bytes) -> dict[str, Fact]:
    """What ApiVersions takes on one connection while another asks for metadata: the answer to the one waits for turns of the other."""
    body = wire.compact_string("forebay-bench") + wire.compact_string("1") + b"\x00"
    small = wire.request(_API_VERSIONS, 3, 0, body)
    with contextlib.closing(Driver(HOST, target.port, connections=2)) as driver:
        bystander, _ = paced(
            driver,
            [
                Schedule([small] * plan.scaled(PACED_S * BYSTANDER_PER_S), BYSTANDER_PER_S),
                Schedule([frame] * plan.scaled(PACED_S * PACED_PER_S), PACED_PER_S),
            ],
        )
    return latencies([bystander], name="bystander_")


def _held(plan: Plan, *, name: str, topics: int, partitions: int, are_named: bool) -> dict[str, Fact]:
    """The longest turn of the event loop during an answer (bench/held_loop.py), in CPU."""
    command = [sys.executable, "-m", "bench.held_loop", "--topics", str(topics), "--partitions", str(partitions)]
    command += ["--requests", str(plan.scaled(HELD_REQUESTS)), *([] if are_named else ["--all"])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=HELD_WITHIN_S, check=True)
    held_ms = json.loads(done.stdout.splitlines()[-1])
    return {f"{name}_p50_ms": quantiles.of_samples(held_ms, P50), f"{name}_max_ms": max(held_ms)}


CASES: Final = (Case("metadata-1000", (DISK, NATIVE, KAFKA), _named), Case("metadata-1000-all", (DISK, NATIVE, KAFKA), _all))
