"""Probes of consumer groups: members that join, sync, beat, leave and commit, and every way to do that wrongly."""

import struct
from typing import Any, Final

from tests.compat.second_opinion.asking import Line, latest, until, versions
from tests.compat.second_opinion.topics import TIMEOUT_MS, append, create, topic

JOIN, SYNC, BEAT, LEAVE = (latest(name) for name in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"))
MEMBER_ID_REQUIRED: Final = 79
SUBSCRIPTION: Final = struct.pack(">hih7si", 0, 1, 7, b"managed", -1)
"""Of a consumer, version 0, to one topic. Apache Kafka 4.3.1 does not answer a member whose metadata are no subscription."""


def _join(group: str, member: str = "", *, protocols: tuple[str, ...] = ("range",), **more: Any) -> dict[str, Any]:
    listed = [{"name": name, "metadata": SUBSCRIPTION} for name in protocols]
    fields = {"session_timeout": 20_000, "rebalance_timeout": 20_000, "protocol_type": "consumer", "protocols": listed}
    return {"group_id": group, "member_id": member, **fields, **more}


def _joined(line: Line, group: str, **more: Any) -> tuple[str, int]:
    """Not a probe: a member alone in its group, with its assignment."""
    answer = line.ask("", "JoinGroup", JOIN, _join(group, **more), kept=False)
    if answer["error_code"] == MEMBER_ID_REQUIRED:
        answer = line.ask("", "JoinGroup", JOIN, _join(group, answer["member_id"], **more), kept=False)
    assert answer["error_code"] == 0, answer
    member, generation = answer["member_id"], answer["generation_id"]
    assignments = [{"member_id": member, "assignment": b"everything"}]
    names = {"protocol_type": more.get("protocol_type", "consumer"), "protocol_name": answer["protocol_name"]}
    synced = line.ask(
        "",
        "SyncGroup",
        SYNC,
        {"group_id": group, "generation_id": generation, "member_id": member, "assignments": assignments, **names},
        kept=False,
    )
    assert synced["error_code"] == 0, synced
    return member, generation


def _leave(line: Line, group: str, member: str) -> None:
    answer = line.ask("", "LeaveGroup", LEAVE, {"group_id": group, "members": [{"member_id": member}]}, kept=False)
    assert answer["error_code"] == 0, answer


def joining(line: Line) -> None:
    for version in versions("JoinGroup"):

        def asks(title: str, group: str, member: str = "", v: int = version, **more: Any) -> dict[str, Any]:
            return line.ask(title, "JoinGroup", v, _join(group, member, **more))

        first = asks("the first", f"joined-{version}")
        member = first["member_id"]
        if first["error_code"] == MEMBER_ID_REQUIRED:
            asks("the first, with its id", f"joined-{version}", member)
        asks("again", f"joined-{version}", member)
        asks("a stranger", f"joined-{version}", "stranger")
        asks("a stranger to a group that is not", f"nothing-{version}", "stranger")
        asks("of no name", "")
        asks("an instant", f"instant-{version}", session_timeout=1)
        asks("a week", f"week-{version}", session_timeout=7 * 86_400_000)
        asks("no protocols", f"none-{version}", protocols=())
        asks("no protocol type", f"untyped-{version}", protocol_type="")
        asks("another protocol", f"joined-{version}", protocols=("sticky",))
        asks("another protocol type", f"joined-{version}", protocol_type="connect")
        if version >= 5:
            static = asks("an instance", f"static-{version}", group_instance_id="i")
            asks("the instance again", f"static-{version}", group_instance_id="i")
            asks("the instance with its old id", f"static-{version}", static["member_id"], group_instance_id="i")
            asks("an instance of an unknown id", f"static-{version}", "stranger", group_instance_id="i")
            asks("an unknown instance with an id", f"static-{version}", "stranger", group_instance_id="j")
    for group in ("", "joined-9"):
        line.ask(f"of group '{group}' without session", "JoinGroup", JOIN, _join(group, session_timeout=0))


def syncing(line: Line) -> None:
    for version in versions("SyncGroup"):
        group = f"synced-{version}"
        member, generation = _joined(line, group)
        right = {"group_id": group, "generation_id": generation, "member_id": member}
        if version >= 5:
            right |= {"protocol_type": "consumer", "protocol_name": "range"}
        asked = {
            "again": {},
            "an old generation": {"generation_id": generation - 1},
            "a generation to come": {"generation_id": generation + 1},
            "a stranger": {"member_id": "stranger"},
            "no member": {"member_id": ""},
            "a group that is not": {"group_id": "nothing"},
            "no group": {"group_id": ""},
        }
        if version >= 3:
            asked["an unknown instance"] = {"group_instance_id": "unknown"}
        if version >= 5:
            asked |= {
                "another protocol": {"protocol_name": "sticky"},
                "another type": {"protocol_type": "connect"},
                "no protocol": {"protocol_name": None},
            }
        for title, changed in asked.items():
            line.ask(title, "SyncGroup", version, {**right, **changed})


def beating(line: Line) -> None:
    for version in versions("Heartbeat"):
        group = f"beating-{version}"
        member, generation = _joined(line, group)
        right = {"group_id": group, "generation_id": generation, "member_id": member}
        asked = {
            "in time": {},
            "an old generation": {"generation_id": generation - 1},
            "a generation to come": {"generation_id": generation + 1},
            "a stranger": {"member_id": "stranger"},
            "no member": {"member_id": ""},
            "a group that is not": {"group_id": "nothing"},
            "no group": {"group_id": ""},
        }
        if version >= 3:
            asked["an unknown instance"] = {"group_instance_id": "unknown"}
        for title, changed in asked.items():
            line.ask(title, "Heartbeat", version, {**right, **changed})
        with line.asked.connect() as other:
            other.send("JoinGroup", 3, _join(group))
            # The second member's join waits for the first; a beat is answered only after it has arrived, so it is asked until it shows.
            until(lambda right=right, v=version: line.ask("", "Heartbeat", v, right, kept=False)["error_code"] != 0)
            line.ask("during a rebalance", "Heartbeat", version, right)
            line.ask("sync during a rebalance", "SyncGroup", version, {**right, "protocol_type": "consumer", "protocol_name": "range"})
            commit = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member, "topics": []}
            line.ask(f"commit during a rebalance {version}", "OffsetCommit", 8, commit)
            line.ask("described during a rebalance", "DescribeGroups", version, {"groups": [group]})
            line.ask("", "LeaveGroup", 1, {"group_id": group, "member_id": member}, kept=False)
            other.take("the second joins", "JoinGroup", 3, kept=False)


def leaving(line: Line) -> None:
    for version in versions("LeaveGroup"):
        group = f"left-{version}"
        member, _ = _joined(line, group)
        if version < 3:
            line.ask("a stranger", "LeaveGroup", version, {"group_id": group, "member_id": "stranger"})
            line.ask("no member", "LeaveGroup", version, {"group_id": group, "member_id": ""})
            line.ask("a group that is not", "LeaveGroup", version, {"group_id": "nothing", "member_id": member})
            line.ask("no group", "LeaveGroup", version, {"group_id": "", "member_id": member})
            line.ask("itself", "LeaveGroup", version, {"group_id": group, "member_id": member})
            line.ask("itself again", "LeaveGroup", version, {"group_id": group, "member_id": member})
            continue
        _joined(line, f"{group}-static", group_instance_id="i")

        def leaves(title: str, name: str, *members: tuple[str, str | None], v: int = version) -> None:
            listed = [{"member_id": one, "group_instance_id": instance} for one, instance in members]
            line.ask(title, "LeaveGroup", v, {"group_id": name, "members": listed})

        leaves("nobody", group)
        leaves("a stranger", group, ("stranger", None))
        leaves("no member", group, ("", None))
        leaves("a group that is not", "nothing", (member, None))
        leaves("no group", "", (member, None))
        leaves("an unknown instance", f"{group}-static", ("", "unknown"))
        leaves("an instance of another id", f"{group}-static", ("stranger", "i"))
        leaves("by instance", f"{group}-static", ("", "i"))
        leaves("itself and a stranger", group, (member, None), ("stranger", None))
        leaves("itself again", group, (member, None))


def _subscription(*topics: str, version: int = 1, owned: tuple[int, ...] = ()) -> bytes:
    """Of a consumer; `owned` are partitions of the first topic."""
    named = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    body = struct.pack(">hi", version, len(topics)) + named + struct.pack(">i", -1)
    if version >= 1:
        body += struct.pack(">i", bool(owned))
        if owned:
            name = topics[0].encode()
            body += struct.pack(">h", len(name)) + name + struct.pack(f">i{len(owned)}i", len(owned), *owned)
    return body


def pairs(line: Line) -> None:
    """Two members: who waits for whom, who is told what, who is leader. Ids are kept as the roles they have."""
    for version in versions("JoinGroup"):
        group = f"pair-{version}"
        sync = min(version, SYNC)
        names = {"protocol_type": "consumer", "protocol_name": "sticky"}
        first, generation = _joined(line, group, protocols=("range", "sticky"))
        with line.asked.connect() as other:
            second = ""
            if version >= 4:
                second = other.ask("a second is given its id", "JoinGroup", version, _join(group))["member_id"]
            other.send("JoinGroup", version, _join(group, second, protocols=("sticky", "odd")))
            beat = {"group_id": group, "generation_id": generation, "member_id": first}
            until(lambda beat=beat: line.ask("", "Heartbeat", BEAT, beat, kept=False)["error_code"] != 0)
            led = line.ask("", "JoinGroup", version, _join(group, first, protocols=("range", "sticky")), kept=False)
            followed = other.take("", "JoinGroup", version, kept=False)
            second = followed.get("member_id", "")
            role = {first: "the first", second: "the second"}
            for who, joined in (("the first", led), ("the second", followed)):
                members = [{**one, "member_id": role.get(one["member_id"])} for one in joined["members"]]
                shown = {**joined, "leader": role.get(joined["leader"]), "member_id": role.get(joined["member_id"]), "members": members}
                line.asked.keep(f"{who} of two joins", "JoinGroup", version, shown)
            generation = led["generation_id"]
            right = {"group_id": group, "generation_id": generation, **names}
            assignments = [{"member_id": first, "assignment": b"one"}, {"member_id": second, "assignment": b"two"}]
            other.send("SyncGroup", sync, {**right, "member_id": second})
            line.ask(f"the leader of two {version}", "SyncGroup", sync, {**right, "member_id": first, "assignments": assignments})
            other.take(f"the follower of two {version}", "SyncGroup", sync)
            line.ask(f"the follower asks again {version}", "SyncGroup", sync, {**right, "member_id": second})
            line.ask(f"the follower assigns {version}", "SyncGroup", sync, {**right, "member_id": second, "assignments": assignments})
            asked = {"groups": [group]}
            line.ask(f"a pair {version}", "DescribeGroups", latest("DescribeGroups"), asked)
            left = [{"member_id": first}, {"member_id": "stranger"}, {"member_id": second}, {"member_id": first}]
            answer = line.ask("", "LeaveGroup", LEAVE, {"group_id": group, "members": left}, kept=False)
            told = {**answer, "members": [{**one, "member_id": role.get(one["member_id"], "?")} for one in answer["members"]]}
            line.asked.keep(f"a pair leaves {version}", "LeaveGroup", LEAVE, told)
            line.ask(f"an empty pair {version}", "DescribeGroups", latest("DescribeGroups"), asked)
    _incomplete(line)
    _followers(line)


def _incomplete(line: Line) -> None:
    """An assignment that leaves members out, names strangers, or one twice."""
    for title, listed in (
        ("to nobody", []),
        ("to strangers", [("stranger", b"x")]),
        ("twice", [("", b"one"), ("", b"two")]),
        ("of nothing", [("", b"")]),
    ):
        group = f"assigns {title}"
        answer = line.ask("", "JoinGroup", JOIN, _join(group), kept=False)
        member = answer["member_id"]
        generation = line.ask("", "JoinGroup", JOIN, _join(group, member), kept=False)["generation_id"]
        right = {"group_id": group, "generation_id": generation, "member_id": member}
        given = [{"member_id": who or member, "assignment": what} for who, what in listed]
        line.ask(f"a leader assigns {title}", "SyncGroup", SYNC, {**right, "assignments": given})
        line.ask(f"a leader assigned {title}, asks", "SyncGroup", SYNC, right)
        line.ask(f"assigned {title}", "DescribeGroups", latest("DescribeGroups"), {"groups": [group]})
        _leave(line, group, member)


def _followers(line: Line) -> None:
    """Members of the cooperative protocol, which join again with what they own, and what another join does to a stable group."""
    create(line, topic("owned", 2))
    group = "cooperative"

    def listed(*owned: int, version: int = 1) -> dict[str, Any]:
        return {"protocols": [{"name": "cooperative-sticky", "metadata": _subscription("owned", version=version, owned=owned)}]}

    answer = line.ask("cooperative, the first", "JoinGroup", JOIN, {**_join(group), **listed()})
    member = answer["member_id"]
    joined = line.ask("cooperative, with its id", "JoinGroup", JOIN, {**_join(group, member), **listed()})
    who = {"group_id": group, "member_id": member}
    right = {**who, "protocol_type": "consumer", "protocol_name": "cooperative-sticky"}
    given = [{"member_id": member, "assignment": b"both"}]
    line.ask("cooperative", "SyncGroup", SYNC, {**right, "generation_id": joined["generation_id"], "assignments": given})
    again = line.ask("cooperative, with what it owns", "JoinGroup", JOIN, {**_join(group, member), **listed(0, 1)})
    line.ask("cooperative, before it synced", "Heartbeat", BEAT, {**who, "generation_id": again["generation_id"]})
    line.ask(
        "cooperative, the old generation", "SyncGroup", SYNC, {**right, "generation_id": joined["generation_id"], "assignments": given}
    )
    line.ask("cooperative, before it synced", "DescribeGroups", latest("DescribeGroups"), {"groups": [group]})
    line.ask("cooperative, once more", "SyncGroup", SYNC, {**right, "generation_id": again["generation_id"], "assignments": given})
    line.ask("cooperative", "DescribeGroups", latest("DescribeGroups"), {"groups": [group]})
    commit = [{"name": "owned", "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
    fields = {"group_id": group, "generation_id_or_member_epoch": again["generation_id"], "member_id": member, "topics": commit}
    line.ask("cooperative", "OffsetCommit", 8, fields)
    _leave(line, group, member)


def instances(line: Line) -> None:
    """Static members: replaced in place, fenced, described, gone by their instance."""
    create(line, topic("static", 1))
    for version in range(5, JOIN + 1):
        group = f"instances-{version}"
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        old, generation = _joined(line, group, group_instance_id="i")
        replaced = line.ask("replaces an instance", "JoinGroup", version, _join(group, group_instance_id="i"))
        new = replaced["member_id"]
        line.asked.keep(
            "who leads after a replacement",
            "JoinGroup",
            version,
            {
                "is_new": new != old,
                "leads": replaced["leader"] == new,
                "old_leads": replaced["leader"] == old,
                "members": len(replaced["members"]),
            },
        )
        for who, member in (("the replaced", old), ("the replacement", new)):
            right = {"group_id": group, "generation_id": generation, "member_id": member}
            line.ask(f"{who} {version}", "Heartbeat", BEAT, {**right, "group_instance_id": "i"})
            line.ask(f"{who} without its instance {version}", "Heartbeat", BEAT, right)
            line.ask(f"{who} {version}", "SyncGroup", SYNC, {**right, "group_instance_id": "i", **names})
            commit = [{"name": "static", "partitions": [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]}]
            fields = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member, "topics": commit}
            line.ask(f"{who} {version}", "OffsetCommit", 8, {**fields, "group_instance_id": "i"})
        line.ask(f"replaced {version}", "DescribeGroups", latest("DescribeGroups"), {"groups": [group]})
        gone = [
            {"member_id": old, "group_instance_id": "i"},
            {"member_id": "", "group_instance_id": "j"},
            {"member_id": "", "group_instance_id": "i"},
        ]
        line.ask(f"instances {version}", "LeaveGroup", LEAVE, {"group_id": group, "members": gone})
        line.ask(f"left {version}", "DescribeGroups", latest("DescribeGroups"), {"groups": [group]})


def forgotten(line: Line) -> None:
    """Offsets of a topic that was deleted, and created again."""
    create(line, topic("forgotten"), topic("kept"))
    parts = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": "m"}]
    commit = {
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": name, "partitions": parts} for name in ("forgotten", "kept")],
    }
    line.ask("of two topics", "OffsetCommit", 8, {"group_id": "forgetting", **commit})
    line.ask("", "DeleteTopics", 5, {"topic_names": ["forgotten"], "timeout": TIMEOUT_MS}, kept=False)

    def asks(title: str, topics: list[dict[str, Any]] | None, *, kept: bool = True) -> dict[str, Any]:
        return line.ask(title, "OffsetFetch", 9, {"groups": [{"group_id": "forgetting", "topics": topics}]}, kept=kept)

    until(lambda: len(asks("", None, kept=False)["groups"][0]["topics"]) == 1)
    asks("all, one deleted", None)
    asks("of a deleted topic", [{"name": "forgotten", "partition_indexes": [0]}])
    line.ask("to a deleted topic", "OffsetCommit", 8, {"group_id": "forgetting", **commit})
    create(line, topic("forgotten"))
    asks("of a topic created again", [{"name": "forgotten", "partition_indexes": [0]}])


def committing(line: Line) -> None:
    create(line, topic("committed", 2))
    append(line, "committed")
    for version in versions("OffsetCommit"):
        group = f"commits-{version}"
        member, generation = _joined(line, group)

        def commits(
            title: str,
            name: str,
            at: int,
            who: str,
            *,
            of: str = "committed",
            partition: int = 0,
            offset: int = 2,
            text: str | None = "m",
            v: int = version,
            **more: Any,
        ) -> None:
            part = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0, "committed_metadata": text}
            fields = {
                "group_id": name,
                "generation_id_or_member_epoch": at,
                "member_id": who,
                "topics": [{"name": of, "partitions": [part]}],
                **more,
            }
            line.ask(
                title,
                "OffsetCommit",
                v,
                {key: value for key, value in fields.items() if v >= 6 or key != "topics"}
                | {"topics": [{"name": of, "partitions": [part]}]},
            )

        commits("by the member", group, generation, member)
        commits("no metadata", group, generation, member, text=None, partition=1)
        commits("5,000 characters of metadata", group, generation, member, text="x" * 5000)
        commits("4,096 characters of metadata", group, generation, member, text="x" * 4096)
        commits("offset minus one", group, generation, member, offset=-1)
        commits("past the end", group, generation, member, offset=99)
        commits("no such partition", group, generation, member, partition=9)
        commits("a negative partition", group, generation, member, partition=-1)
        commits("no such topic", group, generation, member, of="missing")
        commits("an old generation", group, generation - 1, member)
        commits("a generation to come", group, generation + 1, member)
        commits("a stranger", group, generation, "stranger")
        commits("no member", group, generation, "")
        commits("without a generation, with members", group, -1, "")
        commits("without a generation, as a member", group, -1, member)
        commits("no group", "", -1, "")
        commits("a simple group", f"simple-{version}", -1, "")
        commits("a generation of a group that is not", f"nothing-{version}", 3, "stranger")
        if version >= 7:
            commits("an unknown instance", group, generation, member, group_instance_id="unknown")
        _leave(line, group, member)
        commits("without a generation, left", group, -1, "", offset=1)
        commits("by one that left", group, generation, member)
    parts = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}] * 2
    line.ask(
        "one partition twice",
        "OffsetCommit",
        8,
        {"group_id": "twice", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [{"name": "committed", "partitions": parts}]},
    )
    moved = [
        {
            "name": "committed",
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 5, "committed_metadata": ""}],
        }
    ]
    simple = {"group_id": "moved", "generation_id_or_member_epoch": -1, "member_id": ""}
    line.ask("an epoch of another cluster", "OffsetCommit", 8, {**simple, "topics": moved})
    line.ask("what was committed with it", "OffsetFetch", 7, {"group_id": "moved", "topics": None})
    line.ask("nothing", "OffsetCommit", 8, {"group_id": "empty", "generation_id_or_member_epoch": -1, "member_id": "", "topics": []})


def fetching(line: Line) -> None:
    """After `committing`."""
    for version in versions("OffsetFetch"):

        def asks(title: str, group: str, topics: list[dict[str, Any]] | None, v: int = version, **more: Any) -> None:
            fields = {"group_id": group, "topics": topics} if v < 8 else {"groups": [{"group_id": group, "topics": topics}]}
            line.ask(title, "OffsetFetch", v, {**fields, **more})

        one = [{"name": "committed", "partition_indexes": [0, 1]}]
        asks("two partitions", "commits-9", one)
        asks("no such partition", "commits-9", [{"name": "committed", "partition_indexes": [7]}])
        asks("no such topic", "commits-9", [{"name": "missing", "partition_indexes": [0]}])
        asks("a group that is not", "nothing", one)
        asks("no group", "", one)
        asks("no topics", "commits-9", [])
        if version >= 2:
            asks("all", "commits-9", None)
            asks("all of a group that is not", "nothing", None)
        if version >= 7:
            asks("stable", "commits-9", one, require_stable=True)
    line.ask("three groups", "OffsetFetch", 9, {"groups": [{"group_id": name, "topics": None} for name in ("simple-9", "nothing", "")]})
    line.ask(
        "a strange member",
        "OffsetFetch",
        9,
        {"groups": [{"group_id": "commits-9", "member_id": "stranger", "member_epoch": 5, "topics": None}]},
    )


def administration(line: Line) -> None:
    create(line, topic("managed", 2))
    busy, generation = _joined(line, "busy", protocol_type="consumer")
    connect, _ = _joined(line, "workers", protocol_type="connect", protocols=("eager",))
    for name in ("managed",):
        for group, at, who in (("busy", generation, busy), ("idle", -1, "")):
            parts = [{"partition_index": partition, "committed_offset": 1, "committed_metadata": ""} for partition in (0, 1)]
            line.ask(
                "",
                "OffsetCommit",
                8,
                {"group_id": group, "generation_id_or_member_epoch": at, "member_id": who, "topics": [{"name": name, "partitions": parts}]},
                kept=False,
            )
    for version in versions("DescribeGroups"):
        line.ask("some", "DescribeGroups", version, {"groups": ["busy", "workers", "idle"], "include_authorized_operations": version >= 3})
        line.ask("one that is not", "DescribeGroups", version, {"groups": ["nothing"]})
        line.ask("no name", "DescribeGroups", version, {"groups": [""]})
        line.ask("one twice", "DescribeGroups", version, {"groups": ["idle", "idle"]})
        line.ask("none", "DescribeGroups", version, {"groups": []})
    for version in versions("ListGroups"):
        asked: dict[str, dict[str, Any]] = {"all": {}}
        if version >= 4:
            asked |= {
                "stable": {"states_filter": ["Stable"]},
                "empty": {"states_filter": ["Empty"]},
                "an unknown state": {"states_filter": ["Odd"]},
            }
        if version >= 5:
            asked |= {
                "classic": {"types_filter": ["classic"]},
                "consumer": {"types_filter": ["consumer"]},
                "an unknown type": {"types_filter": ["odd"]},
            }
        for title, fields in asked.items():
            answer = line.ask(title, "ListGroups", version, fields, kept=False)
            shown = [one for one in answer["groups"] if one["group_id"] in ("busy", "workers", "idle")]
            line.asked.keep(title, "ListGroups", version, {**answer, "groups": sorted(shown, key=lambda one: str(one["group_id"]))})
    for title, group, name, partition in (
        ("subscribed", "busy", "managed", 0),
        ("of the idle", "idle", "managed", 0),
        ("again", "idle", "managed", 0),
        ("no such partition", "idle", "managed", 9),
        ("no such topic", "idle", "missing", 0),
        ("a group that is not", "nothing", "managed", 0),
        ("no group", "", "managed", 0),
        ("workers", "workers", "managed", 0),
    ):
        line.ask(title, "OffsetDelete", 0, {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": partition}]}]})
    line.ask("nothing", "OffsetDelete", 0, {"group_id": "idle", "topics": []})
    for version in versions("DeleteGroups"):
        line.ask("busy", "DeleteGroups", version, {"groups_names": ["busy"]})
        line.ask("one that is not, and none", "DeleteGroups", version, {"groups_names": ["nothing", ""]})
        commit = [{"name": "managed", "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
        line.ask(
            "", "OffsetCommit", 8, {"group_id": "idle", "generation_id_or_member_epoch": -1, "member_id": "", "topics": commit}, kept=False
        )
        line.ask("idle", "DeleteGroups", version, {"groups_names": ["idle"]})
        line.ask("idle again", "DeleteGroups", version, {"groups_names": ["idle"]})
    _leave(line, "busy", busy)
    _leave(line, "workers", connect)


_COORDINATOR_NOT_AVAILABLE: Final = 15


def coordinators(line: Line) -> None:
    # The first lookup makes Apache Kafka create its internal topic, and the first use load it.
    until(lambda: not line.ask("", "FindCoordinator", 3, {"key": "anybody", "key_type": 0}, kept=False)["error_code"])
    # Forebay refuses these for good.
    transacting = {"key": "transacting", "key_type": 1}
    until(lambda: line.ask("", "FindCoordinator", 3, transacting, kept=False)["error_code"] != _COORDINATOR_NOT_AVAILABLE)
    until(lambda: not line.ask("", "OffsetFetch", 5, {"group_id": "anybody", "topics": None}, kept=False)["error_code"])
    for version in versions("FindCoordinator"):
        if version < 4:
            asked: dict[str, dict[str, Any]] = {"a group": {"key": "anybody"}, "no group": {"key": ""}}
            if version >= 1:
                asked |= {
                    "a transaction": {"key": "transacting", "key_type": 1},
                    "no transaction": {"key": "", "key_type": 1},
                    "a kind that is not": {"key": "x", "key_type": 7},
                }
        else:
            asked = {
                "two groups": {"key_type": 0, "coordinator_keys": ["anybody", "else"]},
                "no group": {"key_type": 0, "coordinator_keys": [""]},
                "none": {"key_type": 0, "coordinator_keys": []},
                "a transaction": {"key_type": 1, "coordinator_keys": ["transacting"]},
                "a kind that is not": {"key_type": 7, "coordinator_keys": ["x"]},
                "one twice": {"key_type": 0, "coordinator_keys": ["anybody", "anybody"]},
                "a share group": {"key_type": 2, "coordinator_keys": ["x"]},
            }
        for title, fields in asked.items():
            line.ask(title, "FindCoordinator", version, fields)


PROBES: Final = (coordinators, joining, syncing, beating, leaving, pairs, instances, committing, fetching, forgotten, administration)
