"""The walks of ARCHITECTURE.md are true: real requests pass the files that a walk names, and few that it does not."""

import datetime
import importlib
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from broker.assembly import open_broker
from process.settings.listeners import Listener
from process.settings.model import Settings
from tests.integration.async_client import AsyncClient
from tests.integration.clustering import HOST
from tests.integration.test_membership import create
from tests.unit.broker.handlers.record_batches import record_batch

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("broker", "process", "storage", "runtime")
PAGE: Final = (ROOT / "ARCHITECTURE.md").read_text()
BATCH: Final = bytes(record_batch(b"x"))
TIMES: Final = 4
"""What goes by the clock is passed in one of them, but not in all."""
HALF_A_MINUTE: Final = datetime.timedelta(seconds=30)

ELSEWHERE: Final = {
    "process/accepting.py": "takes the connection, before any request",
    "broker/handling/recompression.py": "where records are read, or compressed anew",
    "storage/objects/s3/object_store.py": "S3; here objects are in memory",
    "storage/objects/disk.py": "a folder; here objects are in memory",
    "storage/log/producer_pages.py": "for producers that are not in the control record",
    "storage/log/page_store.py": "for producers that are not in the control record",
    "storage/log/unknown.py": "after a write whose outcome is unknown",
    "storage/log/lane.py": "a fetch knows that a log has one",
    "storage/log/readers.py": "a fetch that waits",
    "storage/log/producer_memory.py": "a producer with sequences",
    "storage/log/control_reads.py": "at the known end",
    "storage/log/flights.py": "on a miss",
    "storage/cache/blocks.py": "on a miss",
    "storage/log/readplan.py": "on a miss",
    "storage/recordbatch.py": "on a miss",
    "storage/log/damage.py": "on a miss",
    "storage/log/time_search.py": "offsets by time",
    "broker/groups/events.py": "has nothing but values",
}
"""What a walk names for other cases than the one that is played."""
UNNAMED_MAX: Final = {"produced batch": 20, "fetched batch": 7, "JoinGroup": 19}
"""Files that are passed and not worth a word: clocks, names, values, the in-memory stores."""
PASSED_MAX: Final = {"produced batch": 46, "fetched batch": 24, "JoinGroup": 44}


def named(walk: str) -> set[str]:
    (section,) = re.findall(rf"^## The life of a {walk}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([a-z_0-9/]+\.py)`", section.partition("What every request passes besides")[0]))


def besides() -> set[str]:
    (paragraph,) = re.findall(r"What every request passes besides.*?\n\n", PAGE, re.DOTALL)
    return {path for path in re.findall(r"`([a-z_0-9/]+\.py)`", paragraph) if path.partition("/")[0] in PACKAGES}


async def passed(act: Callable[[], Awaitable[object]]) -> set[str]:
    """Our files of which a function was called meanwhile, in whatever thread."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        await act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = [Path(path).relative_to(ROOT) for path in found if path.startswith(f"{ROOT}/")]
    return {str(path) for path in ours if path.parts[0] in PACKAGES}


@asynccontextmanager
async def client() -> AsyncIterator[AsyncClient]:
    """Of a broker that has served a produce, a fetch and a JoinGroup."""
    settings = Settings.model_validate(
        {
            "kafka": {"listeners": (Listener("PLAINTEXT", HOST, 0),)},
            "storage": {"url": "memory://"},
            "metadata": {"url": "memory://"},
            "groups": {"initial_rebalance_delay": "0ms"},
        }
    )
    async with open_broker(settings, announce=lambda *_: None) as broker:
        await create(broker.listeners[0], "t", partitions=1)
        async with await AsyncClient.connect(broker.listeners[0].port) as one:
            await one.produce("t", {0: BATCH})
            await one.fetch("t", {0: 0})
            await one.ask(join("warm", (await one.ask(join("warm"))).member_id))
            yield one


def join(group: str, member_id: str = "") -> Any:
    module = importlib.import_module("kio.schema.join_group.v5.request")
    protocol = module.JoinGroupRequestProtocol(name="range", metadata=b"x")
    return module.JoinGroupRequest(
        group_id=group,
        session_timeout=HALF_A_MINUTE,
        rebalance_timeout=HALF_A_MINUTE,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(protocol,),
    )


async def act_of(walk: str, one: AsyncClient, group: str) -> Callable[[], Awaitable[object]]:
    match walk:
        case "produced batch":
            return lambda: one.produce("t", {0: BATCH})
        case "fetched batch":
            return lambda: one.fetch("t", {0: 0})
        case _:
            member_id = (await one.ask(join(group))).member_id
            return lambda: one.ask(join(group, member_id))


@pytest.mark.parametrize("walk", ["produced batch", "fetched batch", "JoinGroup"])
async def test_a_request_passes_what_its_walk_names_and_little_else(walk: str) -> None:
    async with client() as one:
        times = [await passed(await act_of(walk, one, f"g-{number}")) for number in range(TIMES)]
    found = set.intersection(*times)

    assert sorted(named(walk) - found - ELSEWHERE.keys()) == [], "it does not pass these"
    assert len(found - named(walk) - besides()) <= UNNAMED_MAX[walk], sorted(found - named(walk) - besides())
    assert len(found) <= PASSED_MAX[walk], "the walk became longer: say so in ARCHITECTURE.md, or make it shorter"


def test_what_is_said_to_be_passed_elsewhere_is_named_by_a_walk() -> None:
    walks = named("produced batch") | named("fetched batch") | named("JoinGroup")

    assert sorted(ELSEWHERE.keys() - walks) == []
