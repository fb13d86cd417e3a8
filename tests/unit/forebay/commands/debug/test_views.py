"""A trace as an operator sees it."""

import json

import msgspec
import pytest

from forebay.commands.trace import SLICES_SHOWN_MAX, SliceFacts, time_text, trace_as_json, trace_as_table
from tests.kit.batches import batch_bytes
from tests.unit.forebay.commands.debug.logged import NAME, logged
from tests.unit.storage.log.rig import TOPIC


async def test_the_table_has_a_block_per_step() -> None:
    async with logged() as log:
        await log.append(batch_bytes(3))
        trace = await log.tracer.trace(NAME, 0, 1)

    lines = trace_as_table(trace).splitlines()

    assert lines[0] == "orders/0 offset 1"
    assert [line.split()[0] for line in lines[1:] if line and not line.startswith(" ")] == ["topic", "manifest", "entry", "object", "batch"]
    assert lines[-1].endswith("OK")


async def test_a_trace_that_was_cut_off_shows_what_it_has() -> None:
    async with logged() as log:
        await log.append(batch_bytes(3))
        trace = msgspec.structs.replace(await log.tracer.trace(NAME, 0, 1), object=None, batch=None)

    blocks = [line.split()[0] for line in trace_as_table(trace).splitlines()[1:] if line and not line.startswith(" ")]

    assert blocks == ["topic", "manifest", "entry"]
    assert json.loads(trace_as_json(trace))["batch"] is None


async def test_of_many_slices_the_first_and_the_traced_one_are_shown() -> None:
    async with logged() as log:
        await log.append(batch_bytes(3))
        trace = await log.tracer.trace(NAME, 0, 1)
    assert trace.object is not None
    slices = tuple(
        SliceFacts(topic=None, topic_id=TOPIC, partition=n, start=n, end=n + 1, is_traced=n == 90) for n in range(SLICES_SHOWN_MAX + 88)
    )
    table = trace_as_table(msgspec.structs.replace(trace, object=msgspec.structs.replace(trace.object, slices=slices)))

    assert "(deleted)/90" in table
    assert "(deleted)/89" not in table
    assert "and 87 more: -o json shows all" in table


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_700_000_000_123, "2023-11-14T22:13:20.123Z"), (-1, "none"), (-5, "-5"), (2**62, f"{2**62} ms")],
)
def test_a_time_is_utc_and_what_is_no_time_stays_a_number(ms: int, text: str) -> None:
    assert time_text(ms) == text
