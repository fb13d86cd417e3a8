"""Coordinators that are wrong on purpose: the seeds find each of them out, so that finding nothing means something."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.cluster.ownership import Claim, Slots
from broker.groups.state import Group
from broker.groups.store import StoredGroup
from sim.groups.world import run_seed
from storage.metadata.port import Put

SEEDS = range(1, 201)


def offsets_without_a_condition(monkeypatch: pytest.MonkeyPatch) -> str:
    put = StoredGroup._put_offset

    def unconditional(self: StoredGroup, *args: Any) -> Put:
        return replace(put(self, *args), expected_version=None)

    monkeypatch.setattr(StoredGroup, "_put_offset", unconditional)
    return "saw"


def answers_from_memory(monkeypatch: pytest.MonkeyPatch) -> str:
    async def trust(self: StoredGroup) -> None:
        pass

    async def look_away(self: Slots) -> list[Claim]:
        return []

    monkeypatch.setattr(StoredGroup, "check", trust)
    # Who looks after its claims has closed the group before many ask.
    monkeypatch.setattr(Slots, "replaced", look_away)
    return "saw"


def generations_in_memory(monkeypatch: pytest.MonkeyPatch) -> str:
    save = StoredGroup.save

    async def once(self: StoredGroup, group: Group) -> None:
        if not self.is_written:
            await save(self, group)

    monkeypatch.setattr(StoredGroup, "save", once)
    return "generation"


@pytest.mark.parametrize("wrong", [offsets_without_a_condition, answers_from_memory, generations_in_memory])
def test_a_coordinator_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[pytest.MonkeyPatch], str]) -> None:
    complaint = wrong(monkeypatch)

    assert any(complaint in text for seed in SEEDS for text in run_seed(seed, "harsh").violations)
