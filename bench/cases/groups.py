"""Groups of 200 members in all, each on a connection of its own: heartbeats, and commits of ten offsets."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench import clients, group_wire
from bench.cases.case import Case, Plan, fresh_broker
from bench.cases.many_clients import CLIENTS, Load, Loaded, refuse_errors, settings_of
from bench.group_wire import Joined
from bench.processes import HOST
from bench.results import CaseResult, Fact
from bench.stores import DISK, KAFKA, NATIVE
from bench.wire import Driver, Refused
from runtime.clock import SystemClock

GROUPS: Final = 20
TOPIC: Final = "grouped"
PARTITIONS_OF_MEMBER: Final = 10
SESSION_TIMEOUT_MS: Final = 300_000
"""Longer than a case: members are quiet while the frames of others are made."""
JOINED_WITHIN_S: Final = 60.0
ASK_AGAIN_S: Final = 0.2

HEARTBEATS_PER_S_LEAST: Final = 8_000.0
COMMITS_PER_S_LEAST: Final = 800.0

_MEMBER_ID_REQUIRED: Final = 79
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Layout:
    """CLIENTS members, dealt out to a number of groups; a group reads the whole topic, ten partitions a member."""

    groups: int

    @property
    def partitions(self) -> int:
        return CLIENTS // self.groups * PARTITIONS_OF_MEMBER

    def group_of(self, connection: int) -> str:
        return f"group-{connection % self.groups:02}"

    def partitions_of(self, connection: int) -> range:
        first = connection // self.groups * PARTITIONS_OF_MEMBER
        return range(first, first + PARTITIONS_OF_MEMBER)


@contextlib.contextmanager
def members(host: str, port: int, layout: Layout) -> Iterator[tuple[Driver, list[Joined]]]:
    """A member on each connection, all in the generation that their group ends up with. Raise `Refused` if that takes too long."""
    driver = Driver(host, port, connections=CLIENTS)
    try:
        driver.run([[group_wire.find_coordinator_request(layout.group_of(number))] for number in range(CLIENTS)], depth=1)
        yield driver, _settled(driver, layout)
    finally:
        driver.close()


def _settled(driver: Driver, layout: Layout) -> list[Joined]:
    """Everybody joins until all have an answer of one generation, and its assignment."""
    deadline_s = _clock.monotonic_s() + JOINED_WITHIN_S
    found = [Joined(_MEMBER_ID_REQUIRED, -1, "", False)] * CLIENTS
    while _clock.monotonic_s() < deadline_s:
        found = _joined(driver, layout, found)
        if not any(member.error for member in found):
            syncs = [[group_wire.sync_group_request(layout.group_of(number), member)] for number, member in enumerate(found)]
            if not any(group_wire.error_of(lane[0]) for lane in driver.run(syncs, depth=1)):
                return found
        time.sleep(ASK_AGAIN_S)
    raise Refused(f"no generation of all members within {JOINED_WITHIN_S} s: errors={sorted({member.error for member in found})}")


def _joined(driver: Driver, layout: Layout, found: Sequence[Joined]) -> list[Joined]:
    joins = [
        [group_wire.join_group_request(layout.group_of(number), member.member_id, session_timeout_ms=SESSION_TIMEOUT_MS)]
        for number, member in enumerate(found)
    ]
    answers = [group_wire.joined(lane[0]) for lane in driver.run(joins, depth=1)]
    # Whoever was refused for another reason comes again as who it was.
    return [
        answer if answer.member_id else answer._replace(member_id=known.member_id) for answer, known in zip(answers, found, strict=True)
    ]


def _check_heartbeat(answer: bytes) -> None:
    if error := group_wire.error_of(answer):
        raise Refused(f"heartbeat: error={error}")


def heartbeats(joined: Sequence[Joined], layout: Layout) -> Load:
    frames = [group_wire.heartbeat_request(layout.group_of(number), member) for number, member in enumerate(joined)]
    return Load(ask=lambda connection, _: frames[connection], check=_check_heartbeat, requests=40_000, paced_per_s=4_000)


def commits(joined: Sequence[Joined], layout: Layout) -> Load:
    def ask(connection: int, number: int) -> bytes:
        return group_wire.offset_commit_request(
            layout.group_of(connection), joined[connection], TOPIC, layout.partitions_of(connection), offset=number
        )

    def check(answer: bytes) -> None:
        refuse_errors(group_wire.commit_errors(answer, TOPIC), "offset commit")

    return Load(ask=ask, check=check, requests=6_000, paced_per_s=400)


def _heartbeat(plan: Plan, store: str, *, name: str, layout: Layout) -> CaseResult:
    what = f"Heartbeat v4 of {CLIENTS} members in all, each on its own connection; latencies at the paced rate"
    return _run(plan, store, layout, make=heartbeats, name=name, what=what, per_s_least=HEARTBEATS_PER_S_LEAST)


def _offset_commit(plan: Plan, store: str, *, name: str, layout: Layout) -> CaseResult:
    what = f"OffsetCommit v8 of {PARTITIONS_OF_MEMBER} partitions by {CLIENTS} members in all; latencies at the paced rate"
    return _run(plan, store, layout, make=commits, name=name, what=what, per_s_least=COMMITS_PER_S_LEAST)


def _run(
    plan: Plan, store: str, layout: Layout, *, make: Callable[[Sequence[Joined], Layout], Load], name: str, what: str, per_s_least: float
) -> CaseResult:
    with fresh_broker(plan, store, {}) as (_, target):
        clients.create_topic(target.bootstrap, TOPIC, layout.partitions)
        with members(HOST, target.port, layout) as (driver, joined):
            load = make(joined, layout)
            loaded = Loaded(target, load, plan, driver)
            loaded.warm_up()
            runs = [loaded.run() for _ in range(plan.repeats)]
    settings: dict[str, Fact] = {**settings_of(load), "groups": layout.groups, "partitions": layout.partitions}
    return CaseResult(name, store, what, settings, runs, least={"requests_per_s": per_s_least})


def _cases(name: str, layout: Layout) -> Iterator[Case]:
    """The heartbeats and the commits of one layout."""
    for what, run in (("heartbeat", _heartbeat), ("offset-commit", _offset_commit)):
        full_name = f"{what}-{name}"
        yield Case(full_name, (DISK, NATIVE, KAFKA), partial(run, name=full_name, layout=layout))


CASES: Final = (*_cases(f"{GROUPS}-groups", Layout(GROUPS)), *_cases("one-group", Layout(1)))
