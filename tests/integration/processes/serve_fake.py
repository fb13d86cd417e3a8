"""`forebay serve` with a broker that does as it is told; run as a program by test_serve.py. A socket on standard input is a supervisor."""

import asyncio
import contextlib
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from forebay.processes.link import SupervisorLink
from forebay.processes.serve import serve
from process.cost.meter import CostMeter
from process.http.health import Readiness
from process.settings.errors import StartError
from process.settings.loading import load
from process.settings.model import Settings
from process.settings.notation import Listener
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.catalog.brokers import ALL_ROLES
from storage.errors import IncompatibleFormat, Unavailable
from storage.outcomes import StoreOutcomes


class FakeBroker:
    broker_id = 1
    cluster_id = "c-1"
    listeners = (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    http = None

    def __init__(self, act: str) -> None:
        self._act = act
        clock = SystemClock()
        self.telemetry = Telemetry()
        self.cost = CostMeter(self.telemetry, Settings(), clock=clock)
        self.roles = ALL_ROLES
        outcomes = StoreOutcomes(clock=clock, telemetry=self.telemetry)
        self.readiness = Readiness(outcomes=outcomes, clock=clock)
        self.readiness.note_listening()
        for written in (outcomes.writes, outcomes.puts):
            written.ok(clock.monotonic_s())

    async def drain(self, *, drain_s: float) -> None:
        assert self.readiness.sum_up().status == "draining"
        if self._act == "drain for ever":
            await asyncio.Event().wait()
        if self._act == "hang":
            time.sleep(1_000)  # noqa: ASYNC251 - a loop that hangs is what this is for

    async def aclose(self) -> None:
        pass


async def fail() -> None:
    raise RuntimeError("a part of the broker fell over")


@contextlib.asynccontextmanager
async def open_broker(settings: Settings, *, announce: Callable[[str, dict[str, Any]], None]) -> AsyncIterator[FakeBroker]:
    act = sys.argv[1]
    announce("stores opened", {"storage": settings.storage.url})
    match act:
        case "refuse":
            raise StartError("Port 9092 on 127.0.0.1 is in use.", exit_code=1)
        case "unreachable":
            raise Unavailable("the folder is on fire")
        case "newer":
            raise IncompatibleFormat("This data directory was written by format 3; nothing was changed.")
        case "start for ever":
            await asyncio.Event().wait()
    async with asyncio.TaskGroup() as parts:
        if act == "fall over":
            parts.create_task(fail())
        yield FakeBroker(act)


if __name__ == "__main__":
    link = SupervisorLink() if stat.S_ISSOCK(os.fstat(0).st_mode) else None
    sys.exit(serve(load(environ=os.environ, assignments=sys.argv[2:]), open_broker=open_broker, link=link))
