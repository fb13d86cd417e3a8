"""Many clients that ask for the ends of many partitions, and whether what they hear is as new as an acknowledgement of another broker."""

import contextlib
import threading
from typing import Final

from bench import clients, processes, wire
from bench.cases.case import Case, Plan, fresh_broker
from bench.cases.many_clients import CLIENTS, Load, Loaded, settings_of
from bench.processes import HOST, Target
from bench.results import CaseResult, Fact
from bench.stores import DISK, KAFKA, NATIVE
from bench.threads import at_once
from bench.wire import Driver

TOPIC: Final = "listed"
PARTITIONS: Final = CLIENTS
APPENDS: Final = 20
OTHERS: Final = 1
"""Brokers beside the one that is asked, where they can share its stores: an answer is never older than what they acknowledged."""
LISTED_PER_S_LEAST: Final = 3_000.0


class Stale(Exception):
    """An answer is older than an acknowledgement that was there before the question."""


def listing(topic: str, partitions: int) -> Load:
    """The latest offset of one partition, each connection of another."""

    def check(answer: bytes) -> None:
        wire.listed_offsets(answer, topic)

    return Load(
        ask=lambda connection, number: wire.list_offsets_request(number, topic, 1, first=connection % partitions),
        check=check,
        requests=20_000,
        paced_per_s=LISTED_PER_S_LEAST / 2,
    )


def _run(plan: Plan, store: str) -> CaseResult:
    load = listing(TOPIC, PARTITIONS)
    with fresh_broker(plan, store, {}) as (place, target), contextlib.ExitStack() as stack:
        targets = [target, *(stack.enter_context(processes.broker(place, {})) for _ in range(OTHERS if store == NATIVE else 0))]
        clients.create_served_topics(target.bootstrap, [TOPIC], PARTITIONS)
        with contextlib.closing(Loaded(targets[0], load, plan)) as loaded:
            loaded.warm_up()
            runs = [loaded.run() for _ in range(plan.repeats)]
            appends = _check_fresh(loaded, asked=targets[0], appending=targets[-1])
    what = f"ListOffsets v7, the latest of one of {PARTITIONS} partitions; an answer is never older than an acknowledgement"
    settings: dict[str, Fact] = {**settings_of(load), "partitions": PARTITIONS, "brokers": len(targets), "appends_checked": appends}
    return CaseResult("list-offsets-many", store, what, settings, runs, least={"requests_per_s": LISTED_PER_S_LEAST})


def _check_fresh(loaded: Loaded, *, asked: Target, appending: Target) -> int:
    """Append by one broker and ask the other as soon as the acknowledgement is there, while it is busy with the load. Raise `Stale`."""
    batch = wire.record_batch(wire.records([b"x"]), 1, now_ms=wire.now_ms())
    is_over = threading.Event()

    def keep_busy() -> None:
        while not is_over.is_set():
            loaded.warm_up()

    def append() -> None:
        with (
            contextlib.closing(Driver(HOST, appending.port, connections=1)) as writer,
            contextlib.closing(Driver(HOST, asked.port, connections=1)) as reader,
        ):
            try:
                for number in range(APPENDS):
                    partition = number % PARTITIONS
                    (acked,) = wire.produced_offsets(writer.ask(wire.produce_request(number, TOPIC, [(partition, batch)])), TOPIC)
                    (end,) = wire.listed_offsets(reader.ask(wire.list_offsets_request(number, TOPIC, 1, first=partition)), TOPIC)
                    if end <= acked:
                        raise Stale(f"partition={partition} acknowledged={acked} end={end}")
            finally:
                is_over.set()

    at_once([keep_busy, append])
    return APPENDS


CASES: Final = (Case("list-offsets-many", (DISK, NATIVE, KAFKA), _run),)
