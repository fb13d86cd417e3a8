import msgspec

from forebay.commands.group.administration import describe_groups, group_table, lag_of, lag_table, lags_table, members_table
from tests.unit.forebay.commands.group.group_examples import CONNECTION, FakeAdmin, member
from tests.unit.forebay.commands.group.group_examples import described as answered

GROUP = describe_groups(CONNECTION, FakeAdmin(groups={"g": answered("g", member("app", ("orders", 0), ("orders", 2)))}), ["g"])["g"]


def test_lag_is_what_is_left_to_the_end_and_only_what_is_known_is_summed() -> None:
    committed = {("orders", 0): 3, ("orders", 1): 90, ("gone", 0): 5}
    found = lag_of(GROUP, committed, {("orders", 0): 10, ("orders", 1): 100, ("orders", 2): 4})

    rows = [(one.topic, one.partition, one.committed, one.end, one.lag, one.client_id) for one in found.partitions]
    assert rows == [
        ("gone", 0, 5, None, None, None),
        ("orders", 0, 3, 10, 7, "app"),
        ("orders", 1, 90, 100, 10, None),
        ("orders", 2, None, 4, None, "app"),
    ]
    assert (found.lag, found.lag_unknown) == (17, 2)


def test_a_group_that_never_committed_has_no_lag_anybody_knows_and_not_a_lag_of_nothing() -> None:
    found = lag_of(GROUP, {}, {("orders", 0): 1_000, ("orders", 2): 0})
    document = msgspec.json.decode(msgspec.json.encode(found))

    assert (document["lag"], document["lag_unknown"]) == (None, 2)
    assert [(one["committed"], one["end"], one["lag"]) for one in document["partitions"]] == [(None, 1_000, None), (None, 0, None)]
    assert "lag      -" in lag_table(found).splitlines()
    assert lags_table([found]).splitlines()[1].split() == ["g", "Stable", "1", "2", "-", "2"]


def test_a_group_that_has_read_all_it_committed_of_has_a_lag_of_nothing() -> None:
    found = lag_of(GROUP, {("orders", 0): 10, ("orders", 2): 4}, {("orders", 0): 10, ("orders", 2): 4})

    assert (found.lag, found.lag_unknown) == (0, 0)
    assert "lag      0" in lag_table(found).splitlines()


def test_a_topic_that_was_made_again_has_no_negative_lag() -> None:
    assert lag_of(GROUP, {("orders", 0): 50}, {("orders", 0): 10}).lag == 0


def test_tables_show_what_is_not_known_as_a_dash() -> None:
    found = lag_of(GROUP, {("orders", 0): 3}, {("orders", 0): 10, ("orders", 2): 4})

    assert lag_table(found).splitlines()[3:] == [
        "lag      7 (unknown in 1 of 2 partitions)",
        "",
        "TOPIC   PARTITION  COMMITTED  END  LAG  CLIENT ID  HOST",
        "orders          0          3   10    7  app        10.0.0.7",
        "orders          2          -    4    -  app        10.0.0.7",
    ]
    assert lags_table([found]).splitlines() == [
        "GROUP  STATE   MEMBERS  PARTITIONS  LAG  UNKNOWN",
        "g      Stable        1           2    7        1",
    ]


def test_a_group_without_partitions_is_its_summary() -> None:
    empty = describe_groups(CONNECTION, FakeAdmin(groups={"e": answered("e")}), ["e"])["e"]

    assert lag_table(lag_of(empty, {}, {})).splitlines() == ["group    e", "state    Stable", "members  0", "lag      -"]
    assert group_table(empty).splitlines()[-1] == "members      0"


def test_members_are_shown_with_what_they_read() -> None:
    assert group_table(GROUP).splitlines()[-2:] == ["CLIENT ID  HOST      ASSIGNMENT", "app        10.0.0.7  orders:0,2"]
    assert members_table(GROUP.members).splitlines()[1].split() == ["app", "10.0.0.7", "-", "app-1", "orders:0,2"]
