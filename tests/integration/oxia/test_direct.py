"""Small requests over a connection of our own, beside gRPC's (docs/internals/adr/0026): to a played node, by a relay that can tell."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from runtime.supervision import Nursery
from storage.errors import Unavailable
from storage.metadata.oxia import nodes
from storage.metadata.oxia.http2 import HELLO, REQUEST_BYTES_MAX
from storage.metadata.oxia.limits import DEFAULT_LIMITS, OxiaLimits
from storage.metadata.oxia.location import OxiaAccess
from storage.metadata.oxia.nodes import tls_context
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import Applied, Key, Put, Unknown, WriteOutcome
from tests.integration.oxia.certificates import Authority
from tests.integration.oxia.opening import opened, seconds_until, until_connected
from tests.integration.oxia.playing import PlayedNode, TokenChecked, played

KEY = Key("llog/0/meta/control", "topic/0")
SECRET = "tell-nobody"
HANDLED_WITHIN_S = 30.0


class Carriers(grpc.aio.ServerInterceptor):
    """Counts what came by gRPC's client, which says its name, and what came without it."""

    def __init__(self) -> None:
        self.by_grpc: Counter[str] = Counter()
        self.direct: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        says_its_name = any(key == "user-agent" for key, _ in handler_call_details.invocation_metadata)
        carried = self.by_grpc if says_its_name else self.direct
        carried[handler_call_details.method.rpartition("/")[2]] += 1
        return await continuation(handler_call_details)


class Relay:
    """Passes connections on. Those of our own may be refused, frozen and cut."""

    def __init__(self, target: str, nursery: Nursery) -> None:
        self.target = target
        self.address = ""
        self.direct_made = 0
        self.refuses_direct = False
        self.drops_direct_requests = False
        self.writers: set[asyncio.StreamWriter] = set()
        self._nursery = nursery
        self._direct: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    def cut(self) -> None:
        for writer in self._direct:
            writer.transport.abort()

    def freeze(self) -> None:
        """What our own connections of now say is heard by nobody any more; what comes on others is."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._nursery.spawn(self._pass(reader, writer), name="relayed")

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with contextlib.suppress(OSError):
            first = await reader.read(65_536)
            is_direct = first.startswith(HELLO)
            if is_direct:
                self.direct_made += 1
                if self.refuses_direct:
                    writer.transport.abort()
                    return
                self._direct.add(writer)
            host, port = self.target.rsplit(":", 1)
            there, to_there = await asyncio.open_connection(host, int(port))
            self.writers.add(to_there)
            to_there.write(first)
            flows = self._flows if is_direct else None
            self._nursery.spawn(_flow(there, writer, flows), name="relayed back")
            if is_direct and self.drops_direct_requests:
                to_there.write((await reader.readexactly(9))[:9])  # it has the settings of the node and takes note of them
                await reader.read(65_536)
                writer.transport.abort()
                return
            await _flow(reader, to_there, flows)


async def _flow(source: asyncio.StreamReader, sink: asyncio.StreamWriter, flows: asyncio.Event | None) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            if flows is not None:
                await flows.wait()
            sink.write(data)
    sink.transport.abort()


@contextlib.asynccontextmanager
async def relayed(node: PlayedNode) -> AsyncIterator[Relay]:
    """The node leads under the address of the relay."""
    async with Nursery() as nursery:
        relay = Relay(node.address, nursery)
        server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        relay.address = node.leader = "{}:{}".format(*server.sockets[0].getsockname())
        try:
            yield relay
        finally:
            server.close()
            for writer in relay.writers:
                writer.transport.abort()


async def put(store: OxiaMetadataStore, *, value: bytes = b"v") -> WriteOutcome:
    return await store.write([Put(KEY, value, None)])


async def until_direct(store: OxiaMetadataStore, carriers: Carriers) -> None:
    """Return when a request has just gone over a connection of our own."""

    async def goes_direct() -> bool:
        before = carriers.direct["Read"]
        await store.probe()
        return carriers.direct["Read"] > before

    await seconds_until(goes_direct)


async def test_after_the_first_answer_small_requests_go_over_a_connection_of_our_own_and_large_ones_do_not() -> None:
    carriers = Carriers()
    async with played(interceptors=[carriers]) as node, opened(f"oxia://{node.address}/ns") as store:
        await store.probe()
        assert (carriers.by_grpc["Read"], carriers.direct["Read"]) == (1, 0)
        await until_direct(store, carriers)
        carriers.by_grpc.clear()
        carriers.direct.clear()

        assert isinstance(await put(store), Applied)
        one, *_ = await store.get_many([KEY])
        assert len(await store.get_many([KEY] * 100)) == 100
        assert one is not None
        assert (carriers.direct, carriers.by_grpc) == (Counter(Write=1, Read=2), Counter())

        assert isinstance(await put(store, value=bytes(REQUEST_BYTES_MAX)), Applied)
        assert len(await store.get_many([Key(f"llog/{'x' * 100}", "topic/0")] * 1_000)) == 1_000
        assert (carriers.direct, carriers.by_grpc) == (Counter(Write=1, Read=2), Counter(Write=1, Read=1))


async def test_the_token_goes_along(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    checked, carriers = TokenChecked(SECRET), Carriers()
    async with (
        played(interceptors=[carriers, checked]) as node,
        opened(f"oxia://{node.address}/ns?tls=false&token_file={tmp_path / 'token'}") as store,
    ):
        await until_direct(store, carriers)

        assert isinstance(await put(store), Applied)
        assert carriers.direct["Write"] == 1
        assert set(checked.seen) == {f"Bearer {SECRET}"}


async def test_with_a_token_that_is_too_long_for_it_requests_go_through_grpc(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 200)
    carriers = Carriers()
    async with (
        played(interceptors=[carriers]) as node,
        opened(f"oxia://{node.address}/ns?tls=false&token_file={tmp_path / 'token'}", limits=OxiaLimits(headers_bytes_max=200)) as store,
    ):
        assert isinstance(await put(store), Applied)
        await until_connected(store, node.address)
        assert isinstance(await put(store), Applied)

        assert (carriers.by_grpc["Write"], carriers.direct["Write"]) == (2, 0)


async def test_a_connection_that_is_cut_leaves_a_write_unknown_and_a_read_is_asked_again() -> None:
    carriers = Carriers()
    async with (
        played(interceptors=[carriers]) as node,
        relayed(node) as relay,
        opened(f"oxia://{node.address}/ns") as store,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        await until_direct(store, carriers)
        node.may_answer.clear()
        written = group.create_task(put(store))
        read = group.create_task(store.get_many([KEY]))
        await node.until_asked("Write")
        asked = node.asked["Read"]
        relay.cut()

        assert isinstance(await written, Unknown)
        await node.until_asked("Read", asked + 1)
        node.may_answer.set()
        assert (await read)[0] is not None
        made = relay.direct_made
        await until_direct(store, carriers)
        assert relay.direct_made == made + 1


async def test_a_connection_that_says_nothing_until_the_deadline_is_not_used_again() -> None:
    carriers = Carriers()
    async with (
        played(interceptors=[carriers]) as node,
        relayed(node) as relay,
        opened(f"oxia://{node.address}/ns", limits=OxiaLimits(write_timeout_s=0.5)) as store,
        asyncio.timeout(30),
    ):
        await until_direct(store, carriers)
        relay.freeze()

        silenced = await put(store)
        assert isinstance(silenced, Unknown)
        assert "no answer in time" in silenced.reason
        assert isinstance(await put(store), Applied)
        await until_direct(store, carriers)
        assert relay.direct_made == 2


async def test_a_deadline_on_a_connection_that_answers_others_ends_one_request_only() -> None:
    carriers = Carriers()
    async with (
        played(interceptors=[carriers]) as node,
        relayed(node) as relay,
        opened(f"oxia://{node.address}/ns", limits=OxiaLimits(write_timeout_s=0.5)) as store,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        await until_direct(store, carriers)
        node.held.add("Write")
        written = group.create_task(put(store))
        await node.until_asked("Write")
        await store.probe()

        assert isinstance(await written, Unknown)
        node.held.clear()
        assert isinstance(await put(store), Applied)
        assert relay.direct_made == 1
        assert carriers.direct["Write"] == 2


async def test_a_node_that_takes_no_connection_of_our_own_is_asked_through_grpc_and_the_log_says_so_once() -> None:
    limits, carriers = OxiaLimits(connect_pause_s=0.0), Carriers()
    with capture_logs() as logged:
        async with (
            played(interceptors=[carriers]) as node,
            relayed(node) as relay,
            opened(f"oxia://{node.address}/ns", limits=limits) as store,
        ):
            relay.refuses_direct = True

            async def refused_often() -> bool:
                assert isinstance(await put(store), Applied)
                return relay.direct_made >= 3

            await seconds_until(refused_often)
            assert not carriers.direct
            relay.refuses_direct = False
            await until_direct(store, carriers)

    said = [entry for entry in logged if entry["event"] == "oxia_direct_connection_failed"]
    assert [entry["address"] for entry in said] == [relay.address]


async def test_a_node_whose_connections_break_under_their_first_request_is_asked_so_ever_more_rarely() -> None:
    limits, carriers = OxiaLimits(connect_pause_s=0.05), Carriers()
    with capture_logs() as logged:
        async with (
            played(interceptors=[carriers]) as node,
            relayed(node) as relay,
            opened(f"oxia://{node.address}/ns", limits=limits) as store,
        ):
            relay.drops_direct_requests = True
            outcomes = []

            async def dropped_often() -> bool:
                outcomes.append(await put(store))
                return sum(isinstance(outcome, Unknown) for outcome in outcomes) >= 4

            took_s = await seconds_until(dropped_often)

    assert took_s >= 0.05 + 0.1 + 0.2
    assert all(isinstance(outcome, Applied | Unknown) for outcome in outcomes)
    assert [entry["event"] for entry in logged if entry["event"].startswith("oxia_direct")] == ["oxia_direct_connection_failed"]


async def test_a_connection_that_breaks_under_many_requests_has_failed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def note(calls: nodes.DirectCalls, cause: str) -> None:
        pauses.append(calls._pause_s)
        note_failure(calls, cause)

    note_failure = nodes.DirectCalls._note_failure
    monkeypatch.setattr(nodes.DirectCalls, "_note_failure", note)
    async with played() as node, relayed(node) as relay, opened(f"oxia://{node.address}/ns") as store:
        relay.drops_direct_requests = True
        await store.probe()
        await until_connected(store, relay.address)
        results = await asyncio.gather(*(store.get_many([KEY]) for _ in range(10)))

    assert None not in [record for (record,) in results]
    assert pauses == [DEFAULT_LIMITS.connect_pause_s]


async def test_who_waits_when_the_store_is_closed_hears_of_it_at_once() -> None:
    carriers = Carriers()

    async def refusal() -> str:
        with pytest.raises(Unavailable) as refused:
            await store.get_many([KEY])
        return str(refused.value)

    async with played(interceptors=[carriers]) as node, opened(f"oxia://{node.address}/ns") as store, asyncio.TaskGroup() as group:
        await until_direct(store, carriers)
        node.may_answer.clear()
        written = group.create_task(put(store))
        asked = node.asked["Read"]
        read = group.create_task(refusal())
        await node.until_asked("Write")
        await node.until_asked("Read", asked + 1)

        await store.close()

        async with asyncio.timeout(HANDLED_WITHIN_S):
            assert isinstance(await written, Unknown)
            assert "closed" in await read


async def test_over_tls_both_show_their_certificates_and_the_token_goes_along(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    theirs, ours = authority.issue("node", alternative="DNS:oxia.example"), authority.issue("broker", alternative="DNS:broker-1")
    (tmp_path / "token").write_text(SECRET)
    checked, carriers = TokenChecked(SECRET), Carriers()
    credentials = grpc.ssl_server_credentials([theirs.pem], root_certificates=authority.ca_file.read_bytes(), require_client_auth=True)
    access = (
        f"tls=true&ca_file={authority.ca_file}&cert_file={ours.certificate}&key_file={ours.key}"
        f"&server_name=oxia.example&token_file={tmp_path / 'token'}"
    )
    async with (
        played(credentials=credentials, interceptors=[carriers, checked]) as node,
        opened(f"oxia://{node.address}/ns?{access}") as store,
    ):
        await until_direct(store, carriers)

        assert isinstance(await put(store), Applied)
        assert carriers.direct["Write"] == 1
        assert set(checked.seen) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("case", ["of another authority", "for another name"])
async def test_a_node_whose_certificate_is_another_s_is_not_connected_to(case: str, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    pair = (others if case == "of another authority" else ours).issue("node", alternative="DNS:oxia.example")
    access = OxiaAccess(tls=True, ca_file=str(ours.ca_file))
    server_name = "oxia.example" if case == "of another authority" else None
    async with played(credentials=grpc.ssl_server_credentials([pair.pem])) as node, Nursery() as nursery:
        calls = nodes.DirectCalls(
            node.address,
            service="/",
            tls=tls_context(access),
            server_name=server_name,
            token=None,
            spawn=lambda coroutine, name: nursery.spawn(coroutine, name=name),
        )
        with capture_logs() as logged:
            calls.note_answer()

            async def has_failed() -> bool:
                return bool(logged)

            await seconds_until(has_failed)

        assert "CERTIFICATE_VERIFY_FAILED" in logged[0]["cause"]
        assert not calls.has_room_for("Read", b"")


def calls_to(address: str, spawn: Callable[[Any, str], object], *, server_name: str | None = None) -> nodes.DirectCalls:
    tls = None if server_name is None else tls_context(OxiaAccess(tls=True))
    return nodes.DirectCalls(address, service="/", tls=tls, server_name=server_name, token=None, spawn=spawn)


@pytest.mark.parametrize(
    ("address", "server_name"),
    [("unix:/x", None), ("host:http", None), ("host", None), ("a..b:1", None), ("a\0b:1", None), ("127.0.0.1:PORT", "n" * 64)],
)
async def test_an_address_that_only_grpc_takes_is_left_to_it(address: str, server_name: str | None) -> None:
    async with played() as node, Nursery() as nursery:
        calls = calls_to(
            address.replace("PORT", node.address.rpartition(":")[2]),
            lambda coroutine, name: nursery.spawn(coroutine, name=name),
            server_name=server_name,
        )
        with capture_logs() as logged:
            calls.note_answer()

            async def has_failed() -> bool:
                return bool(logged)

            await seconds_until(has_failed)

        assert [entry["event"] for entry in logged] == ["oxia_direct_connection_failed"]
        assert not calls.has_room_for("Read", b"")


async def test_a_connection_that_is_made_while_the_store_closes_is_ended() -> None:
    async with played() as node, relayed(node) as relay, Nursery() as nursery:
        tasks: list[asyncio.Task[None]] = []
        calls = calls_to(relay.address, lambda coroutine, name: tasks.append(nursery.spawn(coroutine, name=name)))
        calls.note_answer()
        calls.close()
        async with asyncio.timeout(HANDLED_WITHIN_S):
            await tasks[0]

        assert not calls.has_room_for("Read", b"")
        calls.note_answer()
        assert len(tasks) == 1


async def test_an_answer_counts_though_nobody_runs_tasks_any_more() -> None:
    def spawn(coroutine: Any, name: str) -> object:
        raise RuntimeError("the group of tasks is shutting down")

    calls = calls_to("127.0.0.1:1", spawn)
    calls.note_answer()

    assert not calls.has_room_for("Read", b"")


def test_what_a_connection_holds_unsent_ends_with_it_and_a_peer_that_takes_nothing_ends_it_soon() -> None:
    with socket.socket() as unconnected:
        nodes.set_options(unconnected)

        assert struct.unpack("ii", unconnected.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
        assert unconnected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DEFAULT_LIMITS.write_timeout_s * 1_000
