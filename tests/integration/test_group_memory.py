"""Joins of strangers cost a broker no more than it says, however large and however many they are."""

import datetime
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from storage.limits import KIB, MIB
from tests.kit.raw_client import RawClient
from tests.kit.serving import serving

MEMORY_BYTES = 16 * MIB
JOINED_AT_ONCE_BYTES = 128 * MIB
"""A request, its copy and its slices, and what an allocator holds between them."""


def join(group: str, metadata_bytes: int, *, version: int = 3) -> Any:
    module: Any = importlib.import_module(f"kio.schema.join_group.v{version}.request")
    timeout = datetime.timedelta(minutes=30)
    return module.JoinGroupRequest(
        group_id=group,
        session_timeout=timeout,
        rebalance_timeout=timeout,
        member_id="",
        protocol_type="consumer",
        protocols=(module.JoinGroupRequestProtocol(name="range", metadata=bytes(metadata_bytes)),),
    )


@pytest.mark.slow
def test_large_joins_and_many_groups_are_refused_before_they_are_kept(tmp_path: Path) -> None:
    settings = {"groups.memory_bytes": f"{MEMORY_BYTES}B"}
    with serving(tmp_path, settings=settings, afresh=True) as served, RawClient(served.kafka_port) as client:
        before = served.rss_bytes()
        too_large = Counter(client.ask(join(f"large-{number}", 24 * MIB)).error_code for number in range(20))
        ordinary = Counter(client.ask(join(f"ordinary-{number}", 500 * KIB)).error_code for number in range(60))
        asked_for_ids = Counter(client.ask(join(f"new-{number}", 100, version=4)).error_code for number in range(3_000))
        grown = served.rss_bytes() - before
        still_ordinary = client.ask(join("small", 100)).error_code

    assert too_large == {ErrorCode.message_too_large: 20}
    assert set(ordinary) == {ErrorCode.none, ErrorCode.coordinator_load_in_progress}
    assert ordinary[ErrorCode.none] * 500 * KIB <= MEMORY_BYTES * 3 // 4
    assert asked_for_ids == {ErrorCode.member_id_required: 3_000}
    assert still_ordinary is ErrorCode.none
    assert grown < MEMORY_BYTES + JOINED_AT_ONCE_BYTES
