import dataclasses
import math

import pytest

from process.cost.estimate import CostItem, Estimated, ExpectedLoad, estimate
from process.cost.prices import BUILT_IN
from storage.limits import MIB

WEEK_S = 7 * 86_400
EXAMPLE = ExpectedLoad(bytes_per_s=50 * MIB, retention_s=WEEK_S)


def forebay(found: Estimated) -> dict[str, CostItem]:
    return {item.name: item for item in found.forebay}


def kafka(found: Estimated) -> dict[str, CostItem]:
    return {item.name: item for item in found.kafka}


def estimated(load: ExpectedLoad, store: str = "s3-standard") -> Estimated:
    return estimate(load, BUILT_IN[store])


def test_fifty_mib_a_second_in_three_brokers() -> None:
    found = estimated(EXAMPLE)

    puts, storage = forebay(found)["PUT of WAL objects"], forebay(found)["storage"]
    assert (round(puts.quantity / 1e6, 1), round(puts.dollars, 2)) == (31.5, 157.68)
    assert (round(storage.quantity), round(storage.dollars, 2)) == (29_531, 679.22)
    assert (found.objects_per_s, round(found.object_bytes / MIB, 2)) == (12.0, 4.17)
    crossing, disks = kafka(found)["bytes between zones"], kafka(found)["disks (gp3)"]
    assert (round(crossing.dollars), math.floor(disks.dollars + 0.5)) == (6_844, 11_813)


def test_a_broker_that_fills_its_objects_makes_more_than_one_an_interval() -> None:
    full = dataclasses.replace(EXAMPLE, bytes_per_s=3 * 80 * MIB)

    assert estimated(full).objects_per_s == 3 * 10
    assert estimated(full).object_bytes == 8 * MIB


def test_fewer_batches_than_intervals_make_an_object_each() -> None:
    none_early = dataclasses.replace(EXAMPLE, bytes_per_s=30_000, batches_per_s=3.0, early_bytes_per_s=0)

    assert estimated(none_early).objects_per_s == 3.0


def test_what_is_within_the_budget_goes_early_and_is_an_object_a_minute_of_each_broker_or_full_ones() -> None:
    little = dataclasses.replace(EXAMPLE, bytes_per_s=30_000, batches_per_s=30.0)
    more = dataclasses.replace(EXAMPLE, bytes_per_s=3 * MIB, batches_per_s=300.0)
    beyond = dataclasses.replace(EXAMPLE, bytes_per_s=3 * MIB, batches_per_s=6_000.0)

    assert estimated(little).objects_per_s == pytest.approx(3 / 60)
    assert estimated(more).objects_per_s == pytest.approx(3 / 8)
    assert estimated(beyond).objects_per_s == 3 / EXAMPLE.flush_interval_s, "each commit counts as 2 KiB more"
    assert forebay(estimated(little))["PUT of segments"].dollars > 0


def test_readers_fetch_each_object_in_blocks_and_a_zone_cache_once_a_zone() -> None:
    nine = dataclasses.replace(EXAMPLE, brokers=9, flush_interval_s=1.0)
    puts = estimated(nine).objects_per_s * 730 * 3_600

    assert estimated(nine).object_bytes == pytest.approx(50 / 9 * MIB)
    assert forebay(estimated(nine))["GET by readers"].quantity == pytest.approx(puts * 8 * 2)
    assert forebay(estimated(dataclasses.replace(nine, readers=2)))["GET by readers"].quantity == pytest.approx(puts * 2)
    assert forebay(estimated(dataclasses.replace(nine, has_zone_cache=True)))["GET by readers"].quantity == pytest.approx(puts * 2 * 2)
    assert forebay(estimated(dataclasses.replace(nine, readers=1)))["GET by readers"].quantity == 0


def test_compaction_reads_each_object_once_and_stores_a_segment_in_parts() -> None:
    found = forebay(estimated(EXAMPLE))

    assert found["GET by compaction"].quantity == found["PUT of WAL objects"].quantity
    assert found["PUT of segments"].quantity == pytest.approx(50 / 64 * 730 * 3_600 * 6)
    small = forebay(estimated(dataclasses.replace(EXAMPLE, segment_bytes=16 * MIB)))
    assert small["PUT of segments"].quantity == pytest.approx(50 / 16 * 730 * 3_600)


def test_a_collector_lists_what_is_kept_a_thousand_at_a_time() -> None:
    idle = dataclasses.replace(EXAMPLE, bytes_per_s=1, batches_per_s=0.001)

    assert forebay(estimated(idle))["LIST by collection"].quantity == pytest.approx(730 * 12 * 2)


def test_a_store_that_charges_for_bytes_gets_them_in_and_out() -> None:
    found = forebay(estimated(EXAMPLE, "s3-express"))
    gib = estimated(EXAMPLE).gib_per_month

    assert found["bytes into the store"].dollars == pytest.approx(2 * gib * 0.0032)
    assert found["bytes out of the store"].dollars == pytest.approx(3 * gib * 0.0006)
    assert "bytes into the store" not in forebay(estimated(EXAMPLE))


def test_kafka_s_consumers_cross_zones_where_they_are_not_rack_aware() -> None:
    aware, other = kafka(estimated(EXAMPLE)), kafka(estimated(dataclasses.replace(EXAMPLE, is_rack_aware=False, fan_out=3)))

    gib = estimated(EXAMPLE).gib_per_month
    assert other["bytes between zones"].dollars - aware["bytes between zones"].dollars == pytest.approx(gib * 2 * 0.02)


def test_machines_cost_the_same_on_both_sides() -> None:
    found = estimated(dataclasses.replace(EXAMPLE, machine_per_hour=0.1))

    assert forebay(found)["machines"] == kafka(found)["machines"] == ("machines", 3, "machines", pytest.approx(219.0))
