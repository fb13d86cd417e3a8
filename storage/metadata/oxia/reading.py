"""Reads: sent again, within a deadline, when a leader moves or a connection breaks."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import grpc

from storage.errors import Unavailable
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.calls import CallFailed, CallFate, Failure, Patience, ShardCalls
from storage.metadata.oxia.nodes import OxiaNode
from storage.metadata.oxia.requests import is_empty, parent_of
from storage.metadata.port import Key, Record

GETS_MAX: Final = 1_000
"""Keys in one request; more are asked for one request after the other."""


class OxiaReader:
    def __init__(self, calls: ShardCalls) -> None:
        self._calls = calls

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self._calls.ensure_open()
        places_by_shard: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places_by_shard.setdefault(self._calls.assignments.shard_of(key.partition_key), []).append(place)
        records: list[Record | None] = [None] * len(keys)
        if len(places_by_shard) == 1:
            for shard, places in places_by_shard.items():
                await self._get(shard, keys, places, records)
        elif places_by_shard:
            try:
                async with asyncio.TaskGroup() as group:
                    for shard, places in places_by_shard.items():
                        group.create_task(self._get(shard, keys, places, records))
            except* Unavailable as errors:
                raise _first_of(errors) from None
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        self._calls.ensure_open()
        assert parent_of(key.path) == parent_of(within), f"a ceiling stays under one parent: key={key.path!r} within={within!r}"
        start = max(key.path, within)
        if not start.startswith(within):
            return None
        shard = self._calls.assignments.shard_of(key.partition_key)
        request = wire.ReadRequest(shard=shard)
        request.gets.add(key=start, include_value=True, comparison_type=wire.CEILING)
        (found,) = await self._read(shard, request)
        # Oxia goes on behind the prefix: to deeper keys and to those of other parents.
        if found.status != wire.OK or not found.key.startswith(within) or found.key.count("/") != key.path.count("/"):
            return None
        return Record(found.key, found.value, found.version.version_id)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self._calls.ensure_open()
        if is_empty(start.path, end):
            return
        shard = self._calls.assignments.shard_of(start.partition_key)
        request = wire.RangeScanRequest(shard=shard, start_inclusive=start.path, end_exclusive=end)
        patience: Patience | None = None
        while True:
            leader = self._calls.assignments.leader_of(shard)
            failure = Failure(CallFate.NOT_SENT, f"oxia names no leader of shard {shard}")
            if leader is not None:
                call = self._calls.nodes.at(leader).range_scan(request)
                try:
                    while True:
                        try:
                            message = await self._calls.next_message(call, leader)
                        except grpc.aio.AioRpcError as error:
                            failure = self._calls.note(shard, error, leader)
                            break
                        except (asyncio.CancelledError, grpc.aio.UsageError):
                            self._calls.raise_if_closed_meanwhile()
                            raise
                        if message is None:
                            return
                        patience = None
                        for record in message.records:
                            # Where another attempt goes on: there is no key between the two.
                            request.start_inclusive = f"{record.key}\x00"
                            yield Record(record.key, record.value, record.version.version_id)
                finally:
                    call.cancel()
            patience = patience or self._calls.patience()
            await self._calls.pause_after(failure, patience)
            self._calls.ensure_open()

    async def list_paths(self, start: Key, end: str) -> list[str]:
        self._calls.ensure_open()
        if is_empty(start.path, end):
            return []
        shard = self._calls.assignments.shard_of(start.partition_key)
        request = wire.ListRequest(shard=shard, start_inclusive=start.path, end_exclusive=end)

        async def attempt(node: OxiaNode, _timeout_s: float) -> list[str]:
            paths: list[str] = []
            call = node.list(request)
            try:
                while (message := await self._calls.next_message(call, node.address)) is not None:
                    paths += message.keys
            finally:
                call.cancel()
            return paths

        return await self._calls.repeat(shard, attempt)

    async def probe(self, key: Key) -> None:
        """One get on one shard. Raise `Unavailable`."""
        self._calls.ensure_open()
        shard = self._calls.assignments.shard_of(key.partition_key)
        request = wire.ReadRequest(shard=shard)
        request.gets.add(key=key.path)
        await self._read(shard, request)

    async def put_ms(self, key: Key) -> int | None:
        self._calls.ensure_open()
        shard = self._calls.assignments.shard_of(key.partition_key)
        request = wire.ReadRequest(shard=shard)
        request.gets.add(key=key.path)
        (found,) = await self._read(shard, request)
        return found.version.modified_timestamp if found.status == wire.OK else None

    async def _get(self, shard: int, keys: Sequence[Key], places: Sequence[int], records: list[Record | None]) -> None:
        for first in range(0, len(places), GETS_MAX):
            page = places[first : first + GETS_MAX]
            request = wire.ReadRequest(shard=shard)
            add = request.gets.add
            for place in page:
                add(key=keys[place].path, include_value=True)
            for place, found in zip(page, await self._read(shard, request), strict=True):
                if found.status == wire.OK:
                    records[place] = Record(keys[place].path, found.value, found.version.version_id)

    async def _read(self, shard: int, request: wire.ReadRequest) -> Sequence[wire.GetResponse]:
        async def attempt(node: OxiaNode, timeout_s: float) -> Sequence[wire.GetResponse]:
            found = await node.read(request, timeout=timeout_s)
            if len(found) != len(request.gets):
                raise CallFailed(Failure(CallFate.FAILED, f"oxia at {node.address}: {len(found)} answers to {len(request.gets)} gets"))
            return found

        return await self._calls.repeat(shard, attempt)


def _first_of(errors: ExceptionGroup[Unavailable]) -> Unavailable:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
