"""What every metadata store does. Subclass `MetadataStoreContract`, hand it a store, and its tests run against that store.

The store need not be empty: every test keeps to keys under a root of its own. Nothing here relies on exact version ids,
on the moment a session ends, or on any single hint.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.errors import Unavailable
from storage.limits import METADATA_VALUE_BYTES_MAX
from storage.metadata.port import (
    ABSENT,
    Applied,
    Delete,
    DeleteRange,
    Key,
    KeyChange,
    MetadataStore,
    NotApplied,
    OpResult,
    Put,
    Record,
    Session,
    Status,
    WriteOp,
    children_of,
)
from tests.kit.faulty_metadata import paths_into

SESSION_TIMEOUT_MS = 6_000
"""A session that a test has not renewed for two seconds, because the machine is busy, is there all the same."""
OUTLIVED_TIMEOUT_MS = 5_000
TIMEOUT_S = 60.0
TURN_S = 0.02

_ids = IdSource(clock=SystemClock())


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it holds; fail after `TIMEOUT_S`."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - what is waited for may be another process
            await asyncio.sleep(TURN_S)


class Client:
    """A store as the tests write about it: paths below the root of one test, all on one shard."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self.store = store
        self.root = root

    def key(self, name: str) -> Key:
        return Key(f"{self.root}/{name}", self.root)

    def below(self, name: str) -> tuple[Key, str]:
        """The bounds of the children of `name`."""
        start, end = children_of(f"{self.root}/{name}" if name else self.root)
        return Key(start, self.root), end

    async def write(self, *ops: WriteOp) -> tuple[OpResult, ...]:
        outcome = await self.store.write(ops)
        assert isinstance(outcome, Applied), outcome
        return outcome.results

    async def put(self, name: str, value: bytes = b"", *, expected: int | None = None, session: Session | None = None) -> OpResult:
        (result,) = await self.write(Put(self.key(name), value, expected, session.session_id if session else None))
        return result

    async def put_ok(self, name: str, value: bytes = b"", *, expected: int | None = None, session: Session | None = None) -> int:
        """The version it got."""
        result = await self.put(name, value, expected=expected, session=session)
        assert result.status is Status.OK
        assert result.version is not None
        return result.version

    async def put_all(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), 500):
            results = await self.write(*(Put(self.key(name), name.encode(), None) for name in names[start : start + 500]))
            assert all(result.status is Status.OK for result in results)

    async def delete(self, name: str, *, expected: int | None = None) -> Status:
        (result,) = await self.write(Delete(self.key(name), expected))
        assert result.version is None
        return result.status

    async def get(self, name: str) -> Record | None:
        (record,) = await self.store.get_many([self.key(name)])
        return record

    async def value(self, name: str) -> bytes | None:
        record = await self.get(name)
        return None if record is None else record.value

    async def names_between(self, start: str, end: str) -> list[str]:
        return self._names(await self.store.list(self.key(start), f"{self.root}/{end}"))

    async def children(self, name: str) -> list[str]:
        return self._names(await self.store.list(*self.below(name)))

    async def scan(self, name: str) -> list[Record]:
        start, end = self.below(name)
        return [record async for record in self.store.range_scan(start, end)]

    async def ceiling(self, name: str, *, within: str) -> str | None:
        record = await self.store.get_ceiling(self.key(name), within=f"{self.root}/{within}")
        return None if record is None else self._names([record.path])[0]

    def _names(self, paths: Sequence[str]) -> list[str]:
        assert all(path.startswith(f"{self.root}/") for path in paths)
        return [path.removeprefix(f"{self.root}/") for path in paths]


class MetadataStoreContract:
    @pytest.fixture
    async def store(self) -> MetadataStore:
        """An open store; override with a fixture that yields it and closes it afterwards."""
        raise NotImplementedError

    @pytest.fixture
    def client(self, store: MetadataStore) -> Client:
        return Client(store, f"contract-{_ids.next_ulid()}")

    async def expire(self, session: Session) -> None:
        """Make the session's time pass without a keep-alive, as when its process hangs."""
        raise NotImplementedError

    # Conditions

    async def test_a_record_reads_back_as_it_was_put(self, client: Client) -> None:
        version = await client.put_ok("a", b"first")

        assert await client.get("a") == Record(f"{client.root}/a", b"first", version)

    @pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256)), b"x" * METADATA_VALUE_BYTES_MAX])
    async def test_values_are_any_bytes_up_to_the_limit(self, client: Client, value: bytes) -> None:
        await client.put_ok("a", value)

        assert await client.value("a") == value

    async def test_a_put_without_a_condition_replaces(self, client: Client) -> None:
        await client.put_ok("a", b"first")
        await client.put_ok("a", b"second")

        assert await client.value("a") == b"second"

    async def test_a_put_if_absent_of_a_key_that_exists_fails_and_its_value_stays(self, client: Client) -> None:
        await client.put_ok("a", b"first", expected=ABSENT)

        assert await client.put("a", b"second", expected=ABSENT) == OpResult(Status.UNEXPECTED_VERSION, None)
        assert await client.value("a") == b"first"

    async def test_a_put_at_the_current_version_replaces(self, client: Client) -> None:
        first = await client.put_ok("a", b"first")
        second = await client.put_ok("a", b"second", expected=first)

        assert await client.get("a") == Record(f"{client.root}/a", b"second", second)

    async def test_a_put_at_an_older_version_fails(self, client: Client) -> None:
        first = await client.put_ok("a", b"first")
        await client.put_ok("a", b"second", expected=first)

        assert await client.put("a", b"third", expected=first) == OpResult(Status.UNEXPECTED_VERSION, None)
        assert await client.value("a") == b"second"

    async def test_a_put_at_a_version_of_an_absent_key_fails(self, client: Client) -> None:
        version = await client.put_ok("a")

        assert await client.put("b", expected=version) == OpResult(Status.UNEXPECTED_VERSION, None)
        assert await client.get("b") is None

    async def test_versions_grow_with_every_put_of_any_key(self, client: Client) -> None:
        versions = [await client.put_ok(name) for name in ("a", "b", "a", "a", "c", "b")]

        assert versions == sorted(set(versions))

    async def test_a_failed_put_does_not_change_the_version(self, client: Client) -> None:
        version = await client.put_ok("a")
        await client.put("a", b"second", expected=ABSENT)

        assert await client.put_ok("a", expected=version) > version

    async def test_a_recreated_key_never_gets_an_old_version(self, client: Client) -> None:
        versions = []
        for _ in range(5):
            versions.append(await client.put_ok("a", b"same", expected=ABSENT))
            assert await client.delete("a") is Status.OK

        assert versions == sorted(set(versions))

    async def test_a_condition_on_a_deleted_record_never_holds_for_its_successor(self, client: Client) -> None:
        old = await client.put_ok("a", b"same")
        await client.delete("a")
        await client.put_ok("a", b"same")

        assert (await client.put("a", b"mine", expected=old)).status is Status.UNEXPECTED_VERSION
        assert await client.delete("a", expected=old) is Status.UNEXPECTED_VERSION
        assert await client.value("a") == b"same"

    # Deleting

    async def test_a_deleted_record_is_gone(self, client: Client) -> None:
        await client.put_ok("a")

        assert await client.delete("a") is Status.OK
        assert await client.get("a") is None

    async def test_a_delete_at_the_current_version_deletes(self, client: Client) -> None:
        version = await client.put_ok("a")

        assert await client.delete("a", expected=version) is Status.OK
        assert await client.get("a") is None

    async def test_a_delete_at_another_version_leaves_the_record(self, client: Client) -> None:
        old = await client.put_ok("a")
        await client.put_ok("a", b"new")

        assert await client.delete("a", expected=old) is Status.UNEXPECTED_VERSION
        assert await client.delete("a", expected=ABSENT) is Status.UNEXPECTED_VERSION
        assert await client.value("a") == b"new"

    @pytest.mark.parametrize("expected", [None, ABSENT])
    async def test_a_delete_of_an_absent_key_says_so(self, client: Client, expected: int | None) -> None:
        assert await client.delete("a", expected=expected) is Status.KEY_NOT_FOUND

    async def test_a_delete_at_a_version_of_an_absent_key_fails_by_its_condition(self, client: Client) -> None:
        version = await client.put_ok("a")

        assert await client.delete("b", expected=version) is Status.UNEXPECTED_VERSION

    async def test_a_range_delete_takes_its_start_and_leaves_its_end(self, client: Client) -> None:
        await client.put_all([f"d/{number}" for number in range(6)])
        await client.write(DeleteRange(client.key("d/1"), client.key("d/4").path))

        assert await client.children("d") == ["d/0", "d/4", "d/5"]

    async def test_a_range_delete_stays_in_its_depth_and_its_prefix(self, client: Client) -> None:
        others = ["d", "d/a/x", "d/b/x", "c/z", "d-/a", "d0/a", "e/a"]
        await client.put_all(["d/a", "d/b", *others])
        await client.write(DeleteRange(*client.below("d")))

        assert await client.children("d") == []
        assert None not in await client.store.get_many([client.key(name) for name in others])

    async def test_a_range_delete_of_nothing_is_ok(self, client: Client) -> None:
        assert await client.write(DeleteRange(*client.below("d"))) == (OpResult(Status.OK, None),)

    async def test_a_range_delete_takes_a_thousand_keys(self, client: Client) -> None:
        await client.put_all([f"d/{number:020}" for number in range(1_001)])
        await client.write(DeleteRange(client.key(f"d/{0:020}"), client.key(f"d/{1_000:020}").path))

        assert await client.children("d") == [f"d/{1_000:020}"]

    # Requests of several ops

    async def test_a_request_without_ops_is_applied(self, client: Client) -> None:
        assert await client.write() == ()

    async def test_a_failing_op_leaves_its_siblings_applied(self, client: Client) -> None:
        version = await client.put_ok("taken", b"old")
        results = await client.write(
            Put(client.key("a"), b"1", ABSENT),
            Put(client.key("taken"), b"2", ABSENT),
            Put(client.key("b"), b"3", ABSENT),
            Put(client.key("absent"), b"4", version),
            Delete(client.key("nothing")),
            Delete(client.key("taken"), version),
        )

        assert [result.status for result in results] == [
            Status.OK,
            Status.UNEXPECTED_VERSION,
            Status.OK,
            Status.UNEXPECTED_VERSION,
            Status.KEY_NOT_FOUND,
            Status.OK,
        ]
        assert await client.children("") == ["a", "b"]

    async def test_puts_come_before_deletes_and_these_before_range_deletes(self, client: Client) -> None:
        await client.put_all(["d/old", "x"])
        results = await client.write(
            DeleteRange(*client.below("d")),
            Delete(client.key("x")),
            Delete(client.key("y")),
            Delete(client.key("d/old")),
            Put(client.key("x"), b"", ABSENT),
            Put(client.key("y"), b"", ABSENT),
            Put(client.key("d/new"), b"", ABSENT),
        )

        assert [result.status for result in results] == [
            Status.OK,
            Status.OK,
            Status.OK,
            Status.OK,
            Status.UNEXPECTED_VERSION,
            Status.OK,
            Status.OK,
        ]
        assert await client.children("") == []
        assert await client.children("d") == []

    async def test_a_condition_sees_the_earlier_ops_of_its_request(self, client: Client) -> None:
        results = await client.write(
            Put(client.key("a"), b"1", ABSENT),
            Put(client.key("a"), b"2", ABSENT),
            Put(client.key("a"), b"3", None),
            Delete(client.key("b")),
            Delete(client.key("a")),
            Delete(client.key("a")),
        )

        assert [result.status for result in results] == [
            Status.OK,
            Status.UNEXPECTED_VERSION,
            Status.OK,
            Status.KEY_NOT_FOUND,
            Status.OK,
            Status.KEY_NOT_FOUND,
        ]
        assert await client.get("a") is None

    async def test_each_put_of_a_request_gets_its_own_version(self, client: Client) -> None:
        results = await client.write(*(Put(client.key(name), b"", None) for name in ("a", "b", "c")))
        versions = [result.version for result in results]

        assert len(set(versions)) == 3
        records = await client.store.get_many([client.key(name) for name in ("a", "b", "c")])
        assert [record and record.version for record in records] == versions

    async def test_a_chunk_and_a_manifest_travel_in_one_request(self, client: Client) -> None:
        manifest = await client.put_ok("meta/control", b"1", expected=ABSENT)
        chunk = Put(client.key(f"index/{9:020}"), b"entries", ABSENT)
        won = await client.write(chunk, Put(client.key("meta/control"), b"2", manifest))
        late = await client.write(chunk, Put(client.key("meta/control"), b"other 2", manifest))

        assert [result.status for result in won] == [Status.OK, Status.OK]
        assert [result.status for result in late] == [Status.UNEXPECTED_VERSION, Status.UNEXPECTED_VERSION]
        assert await client.value("meta/control") == b"2"

    # Reading

    async def test_records_come_in_the_order_asked_for_and_absent_ones_are_none(self, client: Client) -> None:
        await client.put_all(["a", "b"])
        records = await client.store.get_many([client.key(name) for name in ("b", "absent", "a", "b")])

        assert [record and record.value for record in records] == [b"b", None, b"a", b"b"]

    async def test_reading_no_keys_reads_nothing(self, client: Client) -> None:
        assert await client.store.get_many([]) == []

    async def test_a_thousand_records_are_read_at_once(self, client: Client) -> None:
        names = [f"d/{number:05}" for number in range(1_000)]
        await client.put_all(names)
        records = await client.store.get_many([client.key(name) for name in reversed(names)])

        assert [record and record.value for record in records] == [name.encode() for name in reversed(names)]

    async def test_a_list_holds_the_direct_children_in_order(self, client: Client) -> None:
        await client.put_all(["d/b", "d/a", "d/B", "d/10", "d/2", "d/a-b", "d/a.b", "d/a_b", "d/ab", "d", "e", "d/a/x", "d/a/x/y", "da/x"])

        assert await client.children("d") == ["d/10", "d/2", "d/B", "d/a", "d/a-b", "d/a.b", "d/a_b", "d/ab", "d/b"]

    async def test_numbers_padded_with_zeros_list_in_their_order(self, client: Client) -> None:
        names = [f"index/{10**power:020}" for power in range(20)]
        await client.put_all(list(reversed(names)))

        assert await client.children("index") == names

    async def test_a_range_takes_its_start_and_leaves_its_end(self, client: Client) -> None:
        await client.put_all(["d/1", "d/2", "d/3", "d/4"])

        assert await client.names_between("d/2", "d/4") == ["d/2", "d/3"]
        assert await client.names_between("d/20", "d/30") == ["d/3"]
        assert await client.names_between("d/2", "d/2") == []

    async def test_a_range_holds_no_children_of_its_parent_s_children_or_siblings(self, client: Client) -> None:
        await client.put_all(["a/1", "a/5", "a/~", "a-/1", "ab/1", "a~/1", "b/1", "a", "a/1/x", "a/3/x", "a/3/x/y"])

        assert await client.names_between("a/", "a/~") == ["a/1", "a/5"]
        assert await client.names_between("a/1", "a/5") == ["a/1"]
        assert await client.names_between("a/2", "a/~~") == ["a/5", "a/~"]

    async def test_letters_beyond_ascii_are_keys(self, client: Client) -> None:
        names = ["groups/a", "groups/é", "groups/ÿ", "groups/日本", "groups/😀"]
        await client.put_all(names)

        assert await client.names_between("groups/", "groups/\U0010ffff") == names
        assert await client.value("groups/日本") == "groups/日本".encode()

    async def test_ranges_without_keys_are_empty(self, client: Client) -> None:
        await client.put_all(["c/1", "e/1", "d"])

        assert await client.children("d") == []
        assert await client.scan("d") == []

    async def test_a_scan_yields_what_gets_yield(self, client: Client) -> None:
        names = ["d/1", "d/2", "d/3"]
        await client.put_all([*names, "d", "d/1/x", "e/1"])

        assert await client.scan("d") == await client.store.get_many([client.key(name) for name in names])

    async def test_a_long_range_is_listed_and_scanned_completely(self, client: Client) -> None:
        names = [f"d/{number:05}" for number in range(1_500)]
        await client.put_all(names)

        assert await client.children("d") == names
        assert [record.value for record in await client.scan("d")] == [name.encode() for name in names]

    async def test_a_scan_may_be_left_early(self, client: Client) -> None:
        await client.put_all(["d/1", "d/2", "d/3"])
        start, end = client.below("d")
        async for record in client.store.range_scan(start, end):
            if record.value == b"d/2":
                break

        assert await client.children("d") == ["d/1", "d/2", "d/3"]

    async def test_records_may_be_deleted_while_they_are_scanned(self, client: Client) -> None:
        names = [f"d/{number:05}" for number in range(600)]
        await client.put_all(names)
        start, end = client.below("d")
        seen = []
        async for record in client.store.range_scan(start, end):
            seen.append(record.value.decode())
            await client.delete(seen[-1])

        assert seen == names
        assert await client.children("d") == []

    async def test_a_ceiling_is_the_key_itself_or_the_next(self, client: Client) -> None:
        await client.put_all([f"index/{end:020}" for end in (9, 19, 39)])

        assert await client.ceiling(f"index/{0:020}", within="index/") == f"index/{9:020}"
        assert await client.ceiling(f"index/{9:020}", within="index/") == f"index/{9:020}"
        assert await client.ceiling(f"index/{10:020}", within="index/") == f"index/{19:020}"
        assert await client.ceiling(f"index/{20:020}", within="index/") == f"index/{39:020}"
        assert await client.ceiling(f"index/{40:020}", within="index/") is None

    async def test_a_ceiling_does_not_leave_its_prefix(self, client: Client) -> None:
        await client.put_all(["a/index/5", "a/meta/control", "a/segments/9", "b/index/5"])

        assert await client.ceiling("a/index/6", within="a/index/") is None
        assert await client.ceiling("a/other/0", within="a/other/") is None

    async def test_a_ceiling_does_not_leave_its_depth(self, client: Client) -> None:
        await client.put_all(["d", "d/1", "d/3/x", "d/5/x"])

        assert await client.ceiling("d/2", within="d/") is None
        assert await client.ceiling("d/0", within="d/") == "d/1"

    async def test_a_ceiling_record_is_whole(self, client: Client) -> None:
        version = await client.put_ok("d/5", b"value")

        found = await client.store.get_ceiling(client.key("d/2"), within=client.key("d/").path)
        assert found == Record(client.key("d/5").path, b"value", version)

    # Sessions

    async def test_an_ephemeral_record_is_an_ordinary_one_while_its_session_lasts(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        version = await client.put_ok("brokers/1", b"here", expected=ABSENT, session=session)

        assert not session.is_lost
        assert await client.get("brokers/1") == Record(client.key("brokers/1").path, b"here", version)
        assert await client.children("brokers") == ["brokers/1"]
        assert await client.scan("brokers") == [await client.get("brokers/1")]
        assert await client.ceiling("brokers/0", within="brokers/") == "brokers/1"
        assert (await client.put("brokers/1", expected=ABSENT)).status is Status.UNEXPECTED_VERSION
        await session.close()

    async def test_ephemeral_records_are_gone_when_their_session_is_closed(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await client.put_ok("brokers/1", session=session)
        await client.put_ok("coordinators/07", session=session)
        await client.put_ok("brokers/2")
        await session.close()

        assert await client.children("brokers") == ["brokers/2"]
        assert await client.get("coordinators/07") is None

    async def test_a_closed_session_is_lost_and_may_be_closed_again(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await session.close()
        await session.close()

        assert session.is_lost
        async with asyncio.timeout(TIMEOUT_S):
            await session.wait_lost()

    async def test_a_put_with_a_closed_session_fails_alone(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await session.close()
        results = await client.write(Put(client.key("a"), b"", None, session.session_id), Put(client.key("b"), b"", None))

        assert [result.status for result in results] == [Status.SESSION_DOES_NOT_EXIST, Status.OK]
        assert results[0].version is None
        assert await client.children("") == ["b"]

    async def test_sessions_end_one_by_one(self, client: Client) -> None:
        first = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        second = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await client.put_ok("brokers/1", session=first)
        await client.put_ok("brokers/2", session=second)
        await first.close()

        assert first.session_id != second.session_id
        assert await client.children("brokers") == ["brokers/2"]
        assert not second.is_lost
        await second.close()

    async def test_a_record_belongs_to_the_session_of_its_last_put(self, client: Client) -> None:
        first = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        second = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await client.put_ok("made-plain", session=first)
        await client.put_ok("made-plain")
        version = await client.put_ok("made-plain-at-version", session=first)
        await client.put_ok("made-plain-at-version", expected=version)
        await client.put_ok("made-ephemeral")
        await client.put_ok("made-ephemeral", session=first)
        await client.put_ok("handed-over", session=first)
        await client.put_ok("handed-over", session=second)
        await client.put_ok("made-anew", session=first)
        await client.delete("made-anew")
        await client.put_ok("made-anew")
        await first.close()

        assert await client.children("") == ["handed-over", "made-anew", "made-plain", "made-plain-at-version"]
        await second.close()
        assert await client.children("") == ["made-anew", "made-plain", "made-plain-at-version"]

    async def test_a_session_outlives_its_timeout_while_its_process_is_well(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=OUTLIVED_TIMEOUT_MS)
        await client.put_ok("brokers/1", session=session)
        await asyncio.sleep(OUTLIVED_TIMEOUT_MS / 1_000 * 1.3)

        assert not session.is_lost
        assert await client.children("brokers") == ["brokers/1"]
        await session.close()

    async def test_ephemeral_records_are_gone_when_their_session_has_expired(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        other = await client.store.open_session(timeout_ms=10 * SESSION_TIMEOUT_MS)
        await client.put_ok("brokers/1", session=session)
        await client.put_ok("brokers/2", session=other)
        await self.expire(session)

        async def is_gone() -> bool:
            return await client.children("brokers") == ["brokers/2"]

        await eventually(is_gone)
        assert (await client.put("brokers/1", session=session)).status is Status.SESSION_DOES_NOT_EXIST
        await client.put_ok("brokers/1", expected=ABSENT, session=other)
        await other.close()

    async def test_a_session_that_expired_says_so(self, client: Client) -> None:
        session = await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await self.expire(session)

        async with asyncio.timeout(TIMEOUT_S):
            await session.wait_lost()
        assert session.is_lost

    # Hints

    async def test_a_subscriber_hears_of_changed_keys_under_its_prefix(self, client: Client) -> None:
        heard: list[str] = []
        subscription = client.store.subscribe(paths_into(heard), prefix=client.key("topics/").path)

        async def is_heard() -> bool:
            await client.put_ok("other", b"")
            await client.put_ok("topics/a", b"")
            return client.key("topics/a").path in heard

        await eventually(is_heard)
        assert set(heard) == {client.key("topics/a").path}
        subscription.cancel()

    async def test_a_hint_names_the_version_that_the_put_gave_or_none(self, client: Client) -> None:
        """Own puts and deletions: those of another process may come without a version, as the very first put of a shard may."""
        await client.put_ok("a", b"")
        heard: list[KeyChange] = []
        subscription = client.store.subscribe(lambda path, version: heard.append((path, version)), prefix=client.key("a").path)
        put: list[int] = []

        async def is_heard() -> bool:
            put.append(await client.put_ok("a", b""))
            return bool(heard)

        await eventually(is_heard)
        assert await client.delete("a") is Status.OK

        async def is_gone() -> bool:
            return (client.key("a").path, None) in heard

        await eventually(is_gone)
        subscription.cancel()
        versions = [version for _, version in heard if version is not None]
        assert versions
        assert versions == put[-len(versions) :]

    async def test_a_subscriber_hears_of_deleted_keys(self, client: Client) -> None:
        heard: list[str] = []
        await client.put_all([f"topics/{number}" for number in range(1_000)])
        subscription = client.store.subscribe(paths_into(heard), prefix=client.root)
        numbers = iter(range(1_000))

        async def is_heard() -> bool:
            assert await client.delete(f"topics/{next(numbers)}") is Status.OK
            return bool(heard)

        await eventually(is_heard)
        subscription.cancel()

    async def test_a_cancelled_subscription_is_silent(self, client: Client) -> None:
        silent: list[str] = []
        heard: list[str] = []
        cancelled = client.store.subscribe(paths_into(silent), prefix=client.root)
        kept = client.store.subscribe(paths_into(heard), prefix=client.root)
        cancelled.cancel()
        cancelled.cancel()

        async def is_heard() -> bool:
            await client.put_ok("a", b"")
            return bool(heard)

        await eventually(is_heard)
        kept.cancel()
        assert silent == []

    # Concurrency

    async def test_of_fifty_writers_at_one_version_exactly_one_wins(self, client: Client) -> None:
        version = await client.put_ok("a", b"")
        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(client.put("a", str(number).encode(), expected=version)) for number in range(50)]
        winners = [str(number).encode() for number, attempt in enumerate(attempts) if attempt.result().status is Status.OK]

        assert len(winners) == 1
        assert await client.value("a") == winners[0]

    async def test_fifty_concurrent_increments_count_to_fifty(self, client: Client) -> None:
        await client.put_ok("counter", b"0", expected=ABSENT)
        won: list[tuple[int, int | None]] = []

        async def increment() -> None:
            while True:
                record = await client.get("counter")
                assert record is not None
                result = await client.put("counter", str(int(record.value) + 1).encode(), expected=record.version)
                if result.status is Status.OK:
                    won.append((record.version, result.version))
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(increment())

        assert await client.value("counter") == b"50"
        assert len({before for before, _ in won}) == len({after for _, after in won}) == 50

    @pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 50])
    async def test_a_cancelled_write_leaves_the_store_usable(self, client: Client, turns: int) -> None:
        before = await client.put_ok("a", b"before")
        async with asyncio.TaskGroup() as group:
            write = group.create_task(client.put("a", b"cancelled", expected=before))
            for _ in range(turns):
                await asyncio.sleep(0)
            write.cancel()
        await client.put_ok("b", b"later")

        async def is_settled() -> bool:
            # The cancelled write may land at any time until something else has won at its version.
            record = await client.get("a")
            assert record is not None
            return (await client.put("a", b"after", expected=record.version)).status is Status.OK

        await eventually(is_settled)
        assert await client.value("a") == b"after"
        assert (await client.put("a", b"cancelled", expected=before)).status is Status.UNEXPECTED_VERSION

    # Shards, probe, closing

    async def test_equal_partition_keys_are_on_one_shard(self, client: Client) -> None:
        assert client.store.shard_of(client.root) == client.store.shard_of("".join(client.root)) >= 0

    async def test_a_probe_of_a_store_that_is_well_returns(self, client: Client) -> None:
        await client.store.probe()

    async def test_a_closed_store_applies_nothing_and_reads_nothing(self, client: Client) -> None:
        await client.put_ok("a", b"")
        await client.store.close()

        assert isinstance(await client.store.write([Put(client.key("a"), b"late", None)]), NotApplied)
        with pytest.raises(Unavailable):
            await client.get("a")
        with pytest.raises(Unavailable):
            await client.children("")
        with pytest.raises(Unavailable):
            await client.store.probe()
        with pytest.raises(Unavailable):
            await client.store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
