"""Requests that name thousands of things, of every API: none is dealt with in one turn of the event loop.

Turns are measured in CPU of the loop's thread, and as a share of what the whole request takes: a slow machine makes both larger; and in
lines of Python, which are as many on every machine.
"""

import asyncio
import gc
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

import pytest

from broker.protocol import apis, codec
from broker.protocol.compiler import Field, Structure, compile_encoder
from tests.kit.raw_client import header
from tests.kit.turns import Turns
from tests.unit.broker.test_dispatch import Desk, desk

NAMED = 8_000
NAMED_OF_GROUPS = 300
"""Each is looked for in the store by itself."""
COUNTED = 6_000
LINES_MAX = 20_000
"""Of Python in one turn: less than four for each of COUNTED."""
SHARE_MAX = 0.25
SHORT_S = 0.015
"""A turn that is so short needs no excuse, whatever its share."""
SOON_S = 60.0
TOPIC = 2
WAIT_FOR_MEMBERS = {"JoinGroup", "SyncGroup"}
OF_GROUPS = {"DescribeGroups", "DeleteGroups", "OffsetFetch"}
APIS = [
    api
    for api in apis.APIS
    if api.key not in (codec.PRODUCE, codec.FETCH)
    and api.name not in WAIT_FOR_MEMBERS
    and any(field.array for field in codec.request_structure(api.key, api.maximum).fields)
]


def value_of(field: Field, number: int, counts: tuple[int, ...]) -> object:
    if field.array:
        count, *deeper = counts or (1,)
        return tuple(element_of(field, place, tuple(deeper)) for place in range(count))
    return element_of(field, number, counts)


def element_of(field: Field, number: int, counts: tuple[int, ...]) -> object:
    if isinstance(field.kafka_type, Structure):
        return filled(field.kafka_type, number, counts)
    match field.kafka_type:
        case "string":
            return f"name-{number:06}"
        case "bytes":
            return b""
        case "uuid":
            return None
        case "bool":
            return False
        case "int8":
            return TOPIC if field.name == "resource_type" else 0
        case _:
            return 1_000 if "timeout" in field.name else number


def filled(structure: Structure, number: int, counts: tuple[int, ...]) -> object:
    """Its arrays have so many elements, by depth; every element has a name and a number of its own."""
    fields = {field.name: value_of(field, number, counts) for field in structure.fields if field.tag is None}
    return structure.cls(**fields)


def frame_of(api: apis.Api, counts: tuple[int, ...]) -> bytes:
    structure = codec.request_structure(api.key, api.maximum)
    body = bytearray()
    compile_encoder(structure, structure)(filled(structure, 0, counts), body)
    return header(api.key, api.maximum) + body


async def longest_turn_s(made: Desk, frame: bytes) -> tuple[float, float]:
    """And CPU of the whole request."""
    turns = Turns()
    turns.start()
    async with asyncio.timeout(SOON_S):
        reply = await made.dispatch.handle(memoryview(frame), made.client)
    assert reply is not None
    return turns.stop(), turns.total_s


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """A whole collection of this process, with all its tests, takes longer than any turn."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("counts", [(NAMED, 1), (1, NAMED)], ids=["wide", "deep"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_a_request_that_names_thousands_is_dealt_with_in_turns(api: apis.Api, counts: tuple[int, ...]) -> None:
    if api.name in OF_GROUPS:
        counts = tuple(min(count, NAMED_OF_GROUPS) for count in counts)
    frame = frame_of(api, counts)
    async with desk() as made:
        await made.topics.create("name-000000", partition_count=10, replication_factor=1, configs={})
        await longest_turn_s(made, frame_of(api, (1, 1)))
        longest_s, total_s = await longest_turn_s(made, frame)
    print(f"{api.name} {counts} longest {longest_s * 1e3:.1f} ms of {total_s * 1e3:.0f} ms")
    assert longest_s < max(SHARE_MAX * total_s, SHORT_S)


class Lines:
    """Counts the lines of Python that the thread runs, turn by turn of its loop."""

    def __init__(self) -> None:
        self.most = 0
        self._lines = 0
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Self:
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
        sys.settrace(self._trace)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # coroutines that run already
            frame.f_trace = self._trace
            frame = frame.f_back
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        assert self._handle is not None
        self._handle.cancel()

    def _trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self._lines += event == "line"
        return self._trace

    def _turn(self) -> None:
        self.most = max(self.most, self._lines)
        self._lines = 0
        self._handle = asyncio.get_running_loop().call_soon(self._turn)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("counts", [(COUNTED, 1), (1, COUNTED)], ids=["wide", "deep"])
@pytest.mark.parametrize("api", [api for api in APIS if api.name not in OF_GROUPS], ids=lambda api: api.name)
async def test_no_turn_of_a_request_goes_through_all_that_it_names(api: apis.Api, counts: tuple[int, ...]) -> None:
    frame = frame_of(api, counts)
    async with desk() as made:
        await made.topics.create("name-000000", partition_count=10, replication_factor=1, configs={})
        await made.dispatch.handle(memoryview(frame_of(api, (1, 1))), made.client)
        with Lines() as lines:
            await made.dispatch.handle(memoryview(frame), made.client)
    print(f"{api.name} {counts} most {lines.most}")
    assert lines.most <= LINES_MAX
