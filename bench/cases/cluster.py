"""Several brokers that share their stores, and many producers: every broker commits to every partition."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bench import clients, meter, processes, readings
from bench.cases.case import Case, Plan, answered, metered
from bench.cases.produce import WARM_UP, settings_of
from bench.clients import Load
from bench.processes import Target
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import NATIVE, Place, fresh
from bench.threads import at_once
from bench.units import KIB

BROKERS: Final = 3
PRODUCERS: Final = 10
PARTITIONS: Final = 500

_names = itertools.count()


def _cluster(plan: Plan, store: str) -> CaseResult:
    """All producers at once, each to all partitions, by the broker it was started at: every broker commits to every partition."""
    load = Load(records=25_600, record_bytes=KIB, partitions=PARTITIONS, turn_records=16, batch_bytes=16 * KIB, linger_ms=20)
    load = replace(load, records=plan.scaled(load.records))
    runs: list[Run] = []
    with fresh(store, plan.folder) as place, contextlib.ExitStack() as stack:
        targets = [stack.enter_context(processes.broker(place, {})) for _ in range(BROKERS)]
        _produced_by_many(place, targets, replace(load, records=max(1, load.records // WARM_UP)))
        for _ in range(plan.repeats):
            work, facts = _produced_by_many(place, targets, load)
            runs.append(Run(work, None, max(meter.peak_rss_bytes(target.pid) for target in targets), facts))
    what = (
        f"{PRODUCERS} producers to {PARTITIONS} partitions by {BROKERS} brokers; CPU is the sum of the brokers, memory that of the largest"
    )
    settings: dict[str, Fact] = {**settings_of(load), "records": load.records * PRODUCERS, "producers": PRODUCERS, "brokers": BROKERS}
    return CaseResult(f"produce-{PARTITIONS}x{PRODUCERS}x{BROKERS}", store, what, settings, runs)


def _produced_by_many(place: Place, targets: Sequence[Target], load: Load) -> tuple[Work, dict[str, Fact]]:
    topic = f"produced-{next(_names)}"
    clients.create_topic(targets[0].bootstrap, topic, load.partitions)
    records, value_bytes = load.records * PRODUCERS, load.value_bytes * PRODUCERS
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(clients.producer(targets[number % len(targets)].bootstrap, load)) for number in range(PRODUCERS)]
        before = readings.read(place, targets)
        try:
            work = metered(
                targets,
                lambda: at_once([partial(clients.produce, one, topic, load) for one in made]),
                records=records,
                value_bytes=value_bytes,
            )
        except clients.Lost as error:
            # Oxia up to 0.14 may stop a shard when two brokers write to it at the same moment.
            raise clients.Lost(f"{error} {[target.troubles() for target in targets]}") from error
        after = readings.read(place, targets)
    clients.check_produced(targets[-1].bootstrap, topic, load.partitions, records=records)
    work = replace(work, requests=answered(after.brokers, before.brokers, "Produce"))
    facts: dict[str, Fact] = {"batch_bytes_mean": value_bytes / work.requests}
    return work, facts | readings.costs(place, after, before, value_bytes=value_bytes)


CASES: Final = (Case(f"produce-{PARTITIONS}x{PRODUCERS}x{BROKERS}", (NATIVE,), _cluster),)
