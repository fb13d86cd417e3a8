"""API key → handler, written out. Produce and Fetch are not here: their codecs and their handlers are their own (broker/dispatch.py).

A test compares this with broker/protocol/support.py.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.handlers import (
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
)
from broker.handlers.context import Context
from broker.protocol.request import Request

Handler = Callable[[Context, Request[Any]], Awaitable[object]]

HANDLERS: Final[dict[int, Handler]] = {
    2: list_offsets.handle,
    3: metadata.handle,
    10: find_coordinator.handle,
    18: api_versions.handle,
    19: create_topics.handle,
    20: delete_topics.handle,
    22: init_producer_id.handle,
    23: offset_for_leader_epoch.handle,
    32: describe_configs.handle,
    60: describe_cluster.handle,
}
