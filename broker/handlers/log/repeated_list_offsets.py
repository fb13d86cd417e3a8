"""Requests for the ends of partitions that were asked before, answered without reading or writing them again.

Of what a client has sent one behind the other, all share the reads of the manifests: each was issued after all of them arrived
(promise 5 of the design), and one answer is as good as the other.
"""

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10 import ListOffsetsRequest

from broker.handling.context import BrokerParts
from broker.handling.errors import error_code_of
from broker.handling.topics import LEADER_EPOCH
from broker.protocol.list_offsets import AskedEnd, RepeatedRequest, correlation_id_of, repeated_key
from runtime.lru import LruCache
from storage.errors import NotFound, StorageError
from storage.limits import KIB
from storage.vocabulary import PartitionId

REQUEST_BYTES_MAX: Final = 4 * KIB
KNOWN_MAX: Final = 256
"""Requests that are remembered, of all clients: with their names and replies about 12 MiB at most."""


class RepeatedListOffsets:
    def __init__(self, parts: BrokerParts) -> None:
        self._topics = parts.topics
        self._bounds = parts.bounds
        self._known: LruCache[bytes, RepeatedRequest] = LruCache(KNOWN_MAX)

    def find(self, frame: memoryview) -> RepeatedRequest | None:
        """None unless it was learned."""
        return self._known.peek(repeated_key(frame)) if len(frame) <= REQUEST_BYTES_MAX else None

    def learn(self, version: int, frame: memoryview, body: ListOffsetsRequest, client_id: str | None) -> None:
        """Remember a request that was answered, if it has the right shape. The oldest makes room."""
        if len(frame) > REQUEST_BYTES_MAX or (request := RepeatedRequest.of(version, body, client_id)) is None:
            return
        self._known.put(repeated_key(frame), request)

    async def answer(self, requests: Sequence[RepeatedRequest]) -> dict[RepeatedRequest, list[int | ErrorCode]]:
        """The answers to each of `requests`. Left out is one of which a topic is not in the cache, or a partition seems not to exist: it
        takes another look to say so.
        """
        wanted: dict[PartitionId, None] = {}
        located: dict[RepeatedRequest, list[PartitionId]] = {}
        for request in requests:
            if request not in located and (partitions := self._locate(request.asked)) is not None:
                located[request] = partitions
                wanted |= dict.fromkeys(partitions)
        if not wanted:
            return {}
        found = dict(zip(wanted, await self._bounds.read(list(wanted)), strict=True))
        answers = {}
        for request, partitions in located.items():
            ends: list[int | ErrorCode] = []
            for asked, partition in zip(request.asked, partitions, strict=True):
                bounds = found[partition]
                if isinstance(bounds, NotFound):
                    break
                if isinstance(bounds, StorageError):
                    ends.append(error_code_of(bounds))
                else:
                    ends.append(bounds.high_watermark if asked.is_latest else bounds.log_start)
            else:
                answers[request] = ends
        return answers

    def _locate(self, asked: Sequence[AskedEnd]) -> list[PartitionId] | None:
        partitions = []
        for end in asked:
            topic = self._topics.find(end.topic)
            if topic is None or not topic.has_partition(end.partition):
                return None
            partitions.append(topic.partition(end.partition))
        return partitions


def replied(request: RepeatedRequest, frame: memoryview, answers: Sequence[int | ErrorCode]) -> tuple[bytearray, int]:
    """The reply, and the first error in it."""
    first_error = next((answer for answer in answers if isinstance(answer, ErrorCode)), 0)
    return request.reply(correlation_id_of(frame), answers, LEADER_EPOCH), first_error
