"""Raising the format level of a cluster, in its metadata store: no Kafka client can ask for that."""

import asyncio
from typing import Final

import msgspec

from forebay.kafka_client.text import facts
from forebay.opening import open_for_reading
from process.settings.model import Settings
from storage.catalog.format_level import Raising, raise_level

RAISING_TIMEOUT_S: Final = 30.0


class BrokerLevel(msgspec.Struct, frozen=True, kw_only=True):
    """`level_max`: the highest level that the broker's release knows."""

    id: int
    address: str
    release: str
    level_max: int


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` says why the level is not what was asked for; None if it is."""

    before: int
    level: int
    brokers: list[BrokerLevel]
    problem: str | None


async def upgrade_cluster(settings: Settings, target: int | None) -> Upgrade:
    """Raises `StartError`, `TimeoutError`, and as `raise_level` does."""
    async with open_for_reading(settings) as stores, asyncio.timeout(RAISING_TIMEOUT_S):
        return upgrade_of(await raise_level(stores.metadata, target))


def upgrade_of(raising: Raising) -> Upgrade:
    return Upgrade(
        before=raising.before,
        level=raising.level,
        brokers=[
            BrokerLevel(id=one.broker_id, address=one.address, release=one.release, level_max=one.level_max) for one in raising.brokers
        ],
        problem=raising.problem,
    )


def upgrade_table(upgrade: Upgrade) -> str:
    return facts(
        [
            ("format level", upgrade.level if upgrade.level == upgrade.before else f"{upgrade.level}, before {upgrade.before}"),
            ("brokers", len(upgrade.brokers)),
            *(("broker", f"{one.id}  {one.address}  release {one.release}  knows up to {one.level_max}") for one in upgrade.brokers),
        ]
    )
