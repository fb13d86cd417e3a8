"""A gRPC proxy in front of one Oxia server, whose calls fail as its plan says.

    async with oxia_proxy(server.address) as proxy:
        proxy.plan.add(Rule(Fault.DROP_REPLY, methods={"Write"}, every=3))
        ... a client of proxy.address ...

        await proxy.silence(2)      # what was asked of shard 2 is held, and so is what its streams would say
        await proxy.resume(2)

Every method is forwarded, bytes through. Only shard assignments are looked into: all leaders become the proxy's address, so that clients
stay behind it. All calls go to the one server, which therefore has to lead every shard (a standalone server does). Which shard a call is of
stands in its first message.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeAlias

import grpc
from oxia.internal.proto.io.streamnative.oxia.proto import ShardAssignments

from runtime.supervision import Nursery
from services.faults.plan import HANG_S_MAX, Counts, Fault, Plan, Rule, of_shard
from services.ports import HOST, held_port

ASSIGNMENTS: Final = "GetShardAssignments"
STREAMS: Final = frozenset({ASSIGNMENTS, "GetNotifications", "GetSequenceUpdates", "WriteStream"})
"""The calls that stay open until somebody ends them."""

_SHARD_TAG: Final = 1 << 3
"""Every request but those for assignments and of write streams has its shard as field 1, a varint, which Oxia's clients write first."""
_SHARD_METADATA: Final = "shard-id"

STOP_GRACE_S: Final = 0.5
_UNLIMITED: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_OURS_ALONE: Final = [*_UNLIMITED, ("grpc.so_reuseport", 0)]
# A server that starts again is found at once; a busy one has ten seconds to take the connection. Tests look at the timeout of the client.
_RECONNECT_AT_ONCE: Final = [
    *_UNLIMITED,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 200),
]

_Call: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class OxiaProxy(grpc.GenericRpcHandler):
    """A server at `address` ("127.0.0.1:PORT", the same for life). `plan` says what fails; `counts` what has happened."""

    def __init__(self, server_address: str, port: int, channel: grpc.aio.Channel, nursery: Nursery) -> None:
        self.server_address = server_address
        self.address = f"{HOST}:{port}"
        self.plan = Plan()
        self.held: Counter[int] = Counter()
        """Calls that met a silent shard, by shard."""
        self._silent: dict[int, asyncio.Event] = {}
        self._channel = channel
        self._nursery = nursery
        self._open: dict[asyncio.Timeout, str] = {}
        self._server: grpc.aio.Server | None = None

    @property
    def counts(self) -> Counts:
        """A copy, as of now."""
        return self.plan.counts

    async def up(self) -> None:
        """Listen, if it does not."""
        if self._server is None:
            server = grpc.aio.server(handlers=[self], options=_OURS_ALONE)
            server.add_insecure_port(self.address)
            # Before it has started: one that runs and that nobody stops outlives its loop.
            self._server = server
            await server.start()

    async def down(self) -> None:
        """Fail all open calls with UNAVAILABLE and stop listening: connections are refused until `up`."""
        server, self._server = self._server, None
        if server is not None:
            self._cut(set(self._open.values()))
            await server.stop(STOP_GRACE_S)

    async def cut(self, methods: frozenset[str] = STREAMS) -> None:
        """Fail the open calls of these methods with UNAVAILABLE. New ones are served."""
        self._cut(set(methods))

    async def silence(self, shard: int) -> None:
        """From now on nothing that is of this shard passes, requests or replies, as when its leader is paused. What is given up meanwhile
        never arrives; the rest goes on with `resume`."""
        self._silent.setdefault(shard, asyncio.Event())

    async def resume(self, shard: int) -> None:
        if (resumed := self._silent.pop(shard, None)) is not None:
            resumed.set()

    async def _until_heard(self, shard: int | None) -> None:
        while shard is not None and (resumed := self._silent.get(shard)) is not None:
            await resumed.wait()

    def _cut(self, methods: set[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        for scope in [scope for scope, method in self._open.items() if method in methods]:
            del self._open[scope]
            scope.reschedule(now_s)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """For gRPC. On the wire a single message is a stream of one, so one kind of handler serves every method."""
        path = handler_call_details.method

        async def handle(requests: AsyncIterator[bytes], call: _Call) -> None:
            await self._handle(path, requests, call)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _handle(self, path: str, requests: AsyncIterator[bytes], call: _Call) -> None:
        method = path.rpartition("/")[2]
        shard, requests = await _of_shard(method, requests, call)
        rule = self.plan.arrived(method, "" if shard is None else of_shard(shard))
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._open[scope] = method
                try:
                    if shard in self._silent:
                        self.held[shard] += 1
                        await self._until_heard(shard)
                    await self._strike(rule, path, requests, call, shard)
                finally:
                    # One that is left cannot be cut any more, though its failure may still be on its way to the client.
                    self._open.pop(scope, None)
        except TimeoutError:
            await call.abort(grpc.StatusCode.UNAVAILABLE, "cut by the fault proxy")
        except grpc.aio.AioRpcError as error:
            await call.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))

    async def _strike(self, rule: Rule | None, path: str, requests: AsyncIterator[bytes], call: _Call, shard: int | None) -> None:
        """One call, as far as its rule lets it come."""
        match rule.fault if rule else None:
            case None:
                await self._forward(path, requests, call, shard)
            case Fault.REFUSE:
                pass
            case Fault.BLACKHOLE:
                await asyncio.sleep(HANG_S_MAX)
            case Fault.DELAY:
                assert rule
                await asyncio.sleep(rule.delay_s)
                await self._forward(path, requests, call, shard)
            case Fault.LATE:
                assert rule
                request = await anext(aiter(requests))
                self._nursery.spawn(self._forward_late(path, request, rule.delay_s, _metadata(call)), name="late call")
            case Fault.DROP_REPLY:
                await self._until_answered(path, requests, call)
            case Fault.HANG_REPLY:
                await self._until_answered(path, requests, call)
                await asyncio.sleep(HANG_S_MAX)
            case Fault.DELAY_REPLY:
                assert rule
                await self._forward(path, requests, call, shard, hold_s=rule.delay_s)
            case Fault.CUT_REPLY:
                assert rule
                await self._forward(path, requests, call, shard, messages_max=rule.messages)
            case Fault.ANSWER | Fault.REPLACE_REPLY | Fault.CUT_REQUEST as unfit:
                raise AssertionError(f"a fault of S3: {unfit}")
        if rule and rule.fault not in (Fault.DELAY, Fault.DELAY_REPLY):
            await call.abort(grpc.StatusCode.UNAVAILABLE, f"{rule.fault.value} by the fault proxy")

    async def _forward(
        self,
        path: str,
        requests: AsyncIterator[bytes],
        call: _Call,
        shard: int | None,
        *,
        hold_s: float = 0.0,
        messages_max: int | None = None,
    ) -> None:
        """Pass messages both ways until the server ends the call or `messages_max` were passed on. Raise what the server fails with."""
        passed = 0
        async with contextlib.aclosing(self._ask(path, requests, call.time_remaining(), _metadata(call))) as replies:
            async for reply in replies:
                if passed == 0 and hold_s:
                    await asyncio.sleep(hold_s)
                if passed == messages_max:
                    return
                await self._until_heard(shard)
                await self._write(call, self._readdressed(reply) if path.endswith(ASSIGNMENTS) else reply)
                passed += 1

    async def _write(self, call: _Call, message: bytes) -> None:
        """Cancelled, return when the message is out all the same: gRPC refuses to end a call while one is on its way."""
        failed: list[grpc.aio.BaseError] = []

        async def write() -> None:
            try:
                await call.write(message)
            except grpc.aio.BaseError as error:
                failed.append(error)

        writing = self._nursery.spawn(write(), name="message")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing], timeout=HANG_S_MAX)
            raise
        if failed:
            raise failed[0]

    async def _until_answered(self, path: str, requests: AsyncIterator[bytes], call: _Call) -> None:
        """Return when the server has said its first message or has failed: a write that has a reply was applied or refused."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with contextlib.aclosing(self._ask(path, requests, call.time_remaining(), _metadata(call))) as replies:
                await anext(replies, None)

    async def _forward_late(self, path: str, request: bytes, delay_s: float, metadata: list[tuple[str, str | bytes]]) -> None:
        await asyncio.sleep(delay_s)

        async def only() -> AsyncIterator[bytes]:
            yield request

        with contextlib.suppress(grpc.aio.AioRpcError):
            async with contextlib.aclosing(self._ask(path, only(), HANG_S_MAX, metadata)) as replies:
                await anext(replies, None)

    async def _ask(
        self, path: str, requests: AsyncIterator[bytes], timeout_s: float | None, metadata: list[tuple[str, str | bytes]]
    ) -> AsyncGenerator[bytes, None]:
        """The server's replies. Leaving early ends the call; what the server has begun it finishes all the same."""
        method = path.rpartition("/")[2]
        ask: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(path)
        upstream = ask(requests, timeout=timeout_s, metadata=metadata)
        self.plan.forwarded(method)
        is_answered = False
        try:
            async for reply in upstream:
                if not is_answered:
                    self.plan.answered(method)
                    is_answered = True
                yield reply
        finally:
            upstream.cancel()

    def _readdressed(self, reply: bytes) -> bytes:
        """Shard assignments in which the proxy leads every shard."""
        found = ShardAssignments.parse(reply)
        for namespace in found.namespaces.values():
            for assignment in namespace.assignments:
                assignment.leader = self.address
        return bytes(found)


async def _of_shard(method: str, requests: AsyncIterator[bytes], call: _Call) -> tuple[int | None, AsyncIterator[bytes]]:
    """The shard a call is of, None for one that is of none, and its requests, the first of which was looked at."""
    if method == ASSIGNMENTS:
        return None, requests
    if (named := dict(call.invocation_metadata() or ()).get(_SHARD_METADATA)) is not None:
        return int(named), requests
    rest = aiter(requests)
    first = await anext(rest, None)
    if first is None:
        return None, rest

    async def whole() -> AsyncIterator[bytes]:
        yield first
        async for request in rest:
            yield request

    return _shard_in(first), whole()


def _shard_in(request: bytes) -> int:
    """proto3 leaves a plain 0 out."""
    if not request or request[0] != _SHARD_TAG:
        return 0
    shard, shift = 0, 0
    for byte in request[1:]:
        shard |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return shard
    raise AssertionError(f"not a request of Oxia's: {request[:16]!r}")


def _metadata(call: _Call) -> list[tuple[str, str | bytes]]:
    """What the client sent along, without what gRPC adds by itself."""
    return [(key, value) for key, value in call.invocation_metadata() or () if key != "user-agent" and not key.startswith("grpc-")]


@contextlib.asynccontextmanager
async def oxia_proxy(server_address: str, *, is_up: bool = True) -> AsyncIterator[OxiaProxy]:
    """A proxy to the server at "HOST:PORT", which need not run yet. Not `is_up`: it does not listen until told `up`."""
    with held_port() as port:
        async with grpc.aio.insecure_channel(server_address, options=_RECONNECT_AT_ONCE) as channel, Nursery() as nursery:
            proxy = OxiaProxy(server_address, port, channel, nursery)
            if is_up:
                await proxy.up()
            try:
                yield proxy
            finally:
                await proxy.down()
