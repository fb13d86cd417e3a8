"""One request about many groups: those of one shard of the metadata store wait for each other, and never for those of another."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from broker.coordination.rendezvous import slot_of
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.supervision import Nursery
from runtime.turns import Turns
from storage.metadata import keys
from storage.metadata.port import MetadataStore

T = TypeVar("T")


class ByShard:
    def __init__(self, metadata: MetadataStore, *, nursery: Nursery, limits: GroupLimits = DEFAULT_GROUP_LIMITS) -> None:
        self._metadata = metadata
        self._nursery = nursery
        self._late_max = limits.late_loads_max
        self._late: set[asyncio.Task[None]] = set()

    async def each(
        self,
        group_ids: Sequence[str],
        act: Callable[[int], Awaitable[T]],
        *,
        late: T,
        patience_s: float | None,
        together_s: float = float("inf"),
    ) -> list[T]:
        """What `act` returns for each place in `group_ids`: shards side by side, the groups of a shard one by one. When one has taken
        `patience_s` (None: for ever), it and all of its shard that follow are `late`; when all so far have taken `together_s`, those that
        follow. Raises what `act` raises.

        `act` must end by itself: one that is late goes on, as long as these are few. Cancelled: `act` is.
        """
        places: dict[int, list[int]] = {}
        turns = Turns()
        for place, group_id in enumerate(group_ids):
            places.setdefault(self._metadata.shard_of(keys.group_partition_key(slot_of(group_id))), []).append(place)
            await turns.spent()
        end_s = asyncio.get_running_loop().time() + together_s
        answers = [late] * len(group_ids)

        async def go_through(its_places: Sequence[int]) -> None:
            for place in its_places:
                answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
                task = self._nursery.spawn(_settle(answer, act, place), name="group-asked")
                try:
                    await asyncio.wait({answer}, timeout=patience_s)
                except asyncio.CancelledError:
                    task.cancel()
                    raise
                if not answer.done():
                    self._leave(task)
                    return
                answers[place] = answer.result()
                if asyncio.get_running_loop().time() >= end_s:
                    return

        async with asyncio.TaskGroup() as shards:
            for its_places in places.values():
                shards.create_task(go_through(its_places))
        return answers

    def _leave(self, task: asyncio.Task[None]) -> None:
        if len(self._late) >= self._late_max:
            task.cancel()
            return
        self._late.add(task)
        task.add_done_callback(self._late.discard)


async def _settle(answer: asyncio.Future[T], act: Callable[[int], Awaitable[T]], place: int) -> None:
    try:
        answer.set_result(await act(place))
    except Exception as error:  # noqa: BLE001 - the asker's business, as long as there is one: the nursery is the whole broker's
        answer.set_exception(error)
        answer.exception()  # marks it retrieved
    finally:
        answer.cancel()
