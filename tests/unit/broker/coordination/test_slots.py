import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from broker.cluster.leadership import COORDINATOR_SLOTS, Candidate, slot_of, winner_of
from broker.cluster.ownership import Slots
from broker.groups.coordinator import CHECKS_PER_LOOK, SLOTS_CHECK_S, Coordinator
from broker.groups.group import Closed
from broker.groups.state import GroupSettings
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, BrokerRecord, Endpoint, Role
from storage.catalog.identity import open_cluster
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete
from tests.kit.coordinating import FIRST, committed, simple
from tests.kit.faulty_metadata import Fault, FaultyMetadata

SLACK_S = 2.0
ALL_HAVE_ALL: Mapping[int, Collection[Role]] = {}


@dataclass
class Opinion:
    """Peers of whom some are dead because a test says so."""

    directory: BrokerDirectory
    dead: set[int] = field(default_factory=set)
    alive: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    async def standing(self) -> list[BrokerRecord]:
        return [record for record in await self.directory.live() if record.session_id not in self.dead]

    async def meet(self) -> list[BrokerRecord]:
        return await self.standing()

    async def is_valid(self, session_id: int) -> bool:
        self.asked.append(session_id)
        return session_id not in self.dead

    def note_life(self, session_id: int) -> None:
        self.alive.append(session_id)
        self.dead.discard(session_id)


@dataclass
class One:
    metadata: FaultyMetadata
    directory: BrokerDirectory
    opinion: Opinion
    slots: Slots
    session_id: int


@contextlib.asynccontextmanager
async def brokers(*ids: int, roles: Mapping[int, Collection[Role]] = ALL_HAVE_ALL) -> AsyncIterator[list[One]]:
    clock = SystemClock()
    store = MemoryMetadataStore(clock=clock, shards=4)
    await open_cluster(store, IdSource(clock=clock), clock)
    made = []
    for broker_id in ids:
        metadata = FaultyMetadata(store.client())  # type: ignore[arg-type]
        directory = BrokerDirectory(metadata, clock=SystemClock())
        own = roles.get(broker_id, ALL_ROLES)
        await directory.register(listeners=[Endpoint("P", "h", broker_id)], rack=None, version="0", broker_id=broker_id, roles=own)
        assert directory.session is not None
        opinion = Opinion(directory)
        made.append(One(metadata, directory, opinion, Slots(metadata, directory, opinion), directory.session.session_id))
    await asyncio.sleep(0.01)  # hints travel
    yield made
    for one in made:
        one.directory.close()
        await one.metadata.close()
    await store.close()


def slot_won_by(broker_id: int, *others: int) -> int:
    """Whose winner is `broker_id`, and after it the others in their order."""
    ids = [broker_id, *others]
    for slot in range(COORDINATOR_SLOTS):
        ranking = [winner_of(slot, [Candidate(one, None) for one in ids[place:]]) for place in range(len(ids))]
        if ranking == ids:
            return slot
    raise AssertionError("no such slot")


async def test_the_winner_among_those_that_stand_replaces_the_claim_of_one_that_does_not() -> None:
    slot = slot_won_by(1, 2, 3)
    async with brokers(1, 2, 3) as (dead, winner, other):
        first = await dead.slots.claim(slot)
        for one in (winner, other):
            one.opinion.dead.add(dead.session_id)
        refused = await other.slots.claim(slot)
        named = await winner.slots.holders_of([slot]), await other.slots.holders_of([slot])
        second = await winner.slots.claim(slot)

        assert first is not None
        assert second is not None
        assert second.version > first.version
        assert refused is None
        assert named == ({slot: 2}, {slot: 2})
        assert await winner.slots.is_held(second)
        assert not await dead.slots.is_held(first)


async def test_the_claim_of_a_broker_that_stands_is_left_alone_whoever_would_win_it() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2) as (one, two):
        one.opinion.dead.add(two.session_id)
        await one.slots.claim(slot)

        assert await two.slots.claim(slot) is None
        assert await two.slots.holders_of([slot]) == {slot: 1}
        assert two.opinion.asked == [one.session_id] * 2, "nobody but the holder was asked"


async def test_a_claim_of_nobody_who_is_registered_is_left_alone() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2) as (one, two):
        await one.slots.claim(slot)
        await one.metadata.write([Delete(keys.broker(1), None)])
        await asyncio.sleep(0.01)

        assert [record.broker_id for record in await two.directory.live()] == [2]
        assert await two.slots.claim(slot) is None
        assert await two.slots.holders_of([slot]) == {slot: 1}


async def test_of_two_that_replace_a_claim_at_once_one_has_it() -> None:
    slot = slot_won_by(1, 2, 3)
    async with brokers(1, 2, 3) as (dead, two, three):
        await dead.slots.claim(slot)
        two.opinion.dead.add(dead.session_id)
        three.opinion.dead |= {dead.session_id, two.session_id}
        both = asyncio.Barrier(2)

        async def together(_: object) -> None:
            async with asyncio.timeout(25):
                await both.wait()

        two.metadata.before_write = three.metadata.before_write = together
        claims = await asyncio.gather(two.slots.claim(slot), three.slots.claim(slot))

        assert len([claim for claim in claims if claim is not None]) == 1


async def test_a_claim_that_several_requests_replace_at_once_is_taken_over_in_one_line_of_the_log() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2) as (dead, winner):
        await dead.slots.claim(slot)
        winner.opinion.dead.add(dead.session_id)
        both = asyncio.Barrier(2)

        async def together(_: object) -> None:
            async with asyncio.timeout(25):
                await both.wait()

        winner.metadata.before_write = together
        with capture_logs() as logged:
            one, other = await asyncio.gather(winner.slots.claim(slot), winner.slots.claim(slot))

        assert one is other is not None
        assert [(line["event"], line["slot"]) for line in logged] == [("slot_taken_over", slot)]


async def test_a_replacement_nobody_has_heard_back_of_is_found_in_the_store() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2) as (dead, winner):
        await dead.slots.claim(slot)
        winner.opinion.dead.add(dead.session_id)
        winner.metadata.faults[len(winner.metadata.writes)] = Fault.REPLY_LOST
        claim = await winner.slots.claim(slot)

        assert claim is not None
        assert await winner.slots.is_held(claim)


async def test_a_late_replacement_does_not_apply_over_what_has_come_meanwhile() -> None:
    slot = slot_won_by(1, 2, 3)
    async with brokers(1, 2, 3) as (dead, late, other):
        await dead.slots.claim(slot)
        late.opinion.dead.add(dead.session_id)
        other.opinion.dead |= {dead.session_id, late.session_id}
        late.metadata.faults[len(late.metadata.writes)] = Fault.LATE
        missed = await late.slots.claim(slot)
        claim = await other.slots.claim(slot)
        await late.metadata.deliver()

        assert missed is None
        assert claim is not None
        assert await other.slots.is_held(claim)


async def test_who_takes_its_claim_back_lives() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2) as (one, two):
        first = await one.slots.claim(slot)
        two.opinion.dead.add(one.session_id)
        taken = await two.slots.claim(slot)
        before = list(two.opinion.alive)
        one.opinion.dead.add(two.session_id)
        assert first is not None
        one.slots.forget(first)
        again = await one.slots.claim(slot)

        assert taken is not None
        assert again is not None
        assert before == []
        assert await two.slots.holders_of([slot]) == {slot: 1}
        assert two.opinion.alive == [one.session_id]


async def test_brokers_that_take_each_other_for_dead_take_a_slot_from_each_other_twice_and_no_more() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2) as made:
        sessions = {one.session_id for one in made}
        for one in made:
            one.opinion.dead |= sessions - {one.session_id}
        versions = []
        for _ in range(10):
            for one in made:
                for claim in await one.slots.replaced():
                    one.slots.forget(claim)
                if (claim_now := await one.slots.claim(slot)) is not None:
                    versions.append(claim_now.version)

        assert len(set(versions)) == 3, "one made it, the other took it, and it was taken back"


async def test_a_claim_that_was_taken_is_found_by_who_had_it() -> None:
    slot, kept = slot_won_by(1, 2), slot_won_by(2, 1)
    async with brokers(1, 2) as (one, two):
        two.opinion.dead.add(one.session_id)
        first = await one.slots.claim(slot)
        one.opinion.dead.add(two.session_id)
        await one.slots.claim(kept)
        before = await one.slots.replaced()
        await two.slots.claim(slot)

        assert before == []
        assert await one.slots.replaced() == [first]


async def test_a_look_at_all_claims_is_one_read() -> None:
    async with brokers(1, 2) as (one, _):
        await one.slots.claim(slot_won_by(1, 2))
        reads, scans = len(one.metadata.reads), one.metadata.scans

        assert await one.slots.replaced() == []
        assert (len(one.metadata.reads), one.metadata.scans) == (reads + 1, scans)


async def test_a_claim_that_is_being_given_up_is_not_taken_for_one_that_stands() -> None:
    async with brokers(1) as (one,):
        claim = await one.slots.claim(0)
        assert claim is not None
        meanwhile = []

        async def ask(_: object) -> None:
            one.metadata.before_write = None
            meanwhile.append(await one.slots.claim(0))

        one.metadata.before_write = ask
        await one.slots.give_up(claim)
        again = await one.slots.claim(0)

        assert meanwhile == [None]
        assert again is not None
        assert again.version > claim.version


async def test_housekeeping_asks_nobody() -> None:
    async with brokers(1, 2) as (one, _):
        slots = await one.slots.own()

        assert 0 < len(slots) < COORDINATOR_SLOTS
        assert one.opinion.asked == []


@pytest.mark.parametrize(("hears_hints", "within_s"), [(True, 2 * SLOTS_CHECK_S), (False, (CHECKS_PER_LOOK + 1) * SLOTS_CHECK_S)])
async def test_a_broker_that_lives_and_was_taken_for_dead_gives_up_its_groups_soon(hears_hints: bool, within_s: float) -> None:
    slot = slot_won_by(1, 2)
    group = next(f"g{number}" for number in range(10_000) if slot_of(f"g{number}") == slot)
    async with Nursery() as nursery, brokers(1, 2) as made:
        coordinators = []
        for one in made:
            clock = SystemClock()
            settings = GroupSettings(initial_delay_s=0)
            coordinators.append(
                Coordinator(
                    metadata=one.metadata, slots=one.slots, clock=clock, ids=IdSource(clock=clock), nursery=nursery, settings=settings
                )
            )
            nursery.spawn(coordinators[-1].run(), name="groups")
        robbed, taker = coordinators
        await robbed.commit(group, simple({FIRST: committed(5)}))
        loaded = await robbed.find(group)
        if not hears_hints:
            made[0].slots.close()
        made[1].opinion.dead.add(made[0].session_id)
        found = await taker.checked(group)
        async with asyncio.timeout(within_s + SLACK_S):
            while loaded.is_open:  # noqa: ASYNC110 - it notices by itself
                await asyncio.sleep(0.05)

        assert found.stored.offset(FIRST) == committed(5)
        assert robbed.slots.claims == []
        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await robbed.find(group)


async def test_a_broker_without_the_role_of_groups_wins_no_slot_while_another_has_it() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2, roles={1: {Role.PRODUCE}}) as (one, two):
        refused, taken = await one.slots.claim(slot), await two.slots.claim(slot)

        assert refused is None
        assert taken is not None
        assert await one.slots.holders_of([slot]) == {slot: 2}
        assert len(await two.slots.own()) == COORDINATOR_SLOTS
        assert await one.slots.own() == []


async def test_the_last_broker_standing_coordinates_whatever_its_roles_are() -> None:
    slot = slot_won_by(1, 2)
    async with brokers(1, 2, roles={1: {Role.PRODUCE}}) as (one, two):
        await two.slots.claim(slot)
        one.opinion.dead.add(two.session_id)

        assert await one.slots.claim(slot) is not None
