"""The way to a cluster: bootstrap addresses, clients of the library, and what their errors mean for the exit code.

The library asks advertised addresses alone. `ask_for_cluster` asks the bootstrap address itself, on a connection of its own, and so
finds out where the advertised ones are what is wrong. Ctrl-C comes between calls into the library, never within: raised in a callback that
the library makes, an interruption ends as `SystemError`, and what the callback was to count or commit is lost.
"""

import contextlib
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from forebay.kafka_client.failures import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    ClientFailed,
)
from runtime.clock import SystemClock

T = TypeVar("T")
UNKNOWN_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
)
NO_ANSWER: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT}  # noqa: SLF001
)
"""No broker said this: the client library gave up."""
_EXIT_CODES: Final = {
    EXIT_NOT_FOUND: {*UNKNOWN_TOPIC, KafkaError.GROUP_ID_NOT_FOUND},
    EXIT_UNREACHABLE: {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE},  # noqa: SLF001
    EXIT_TIMED_OUT: {KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT},  # noqa: SLF001
    EXIT_REFUSED: {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError.SECURITY_DISABLED,
        KafkaError.POLICY_VIOLATION,
    },
    EXIT_USAGE: {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_GROUP_ID,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    },
}
_METADATA: Final = 3
_VERSION: Final = 4
"""Known to every Kafka since 0.11."""
_CORRELATION_ID: Final = 4_711
_METADATA_BYTES_MAX: Final = 2**20
KAFKA_PORT: Final = 9092
PORT_MAX: Final = 65_535
CONNECT_WITHIN_S: Final = 5.0
DIAGNOSE_WITHIN_S: Final = 2.0
ANSWER_WITHIN_MAX_S: Final = 3_600.0
"""The library waits for no answer longer than this."""
CLIENT_ID: Final = "forebay"
REQUEST_WITHIN_DEFAULT_S: Final = 60.0
REQUEST_WITHIN_MAX_S: Final = 300.0
"""The library's own default, and the most it takes: an answer of more than that is asked for again."""
ANSWER_BYTES_MAX: Final = 1_000_000_000
PAUSE_S: Final = 0.2
_LEAST_S: Final = 0.1


def interruptible(call: Callable[[], T]) -> T:
    """What a long call into the library returns or raises. Ctrl-C ends the wait for it at once; the call goes on in a thread of its own,
    for which the process does not wait when it ends.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, name="library-call", daemon=True).start()
    return outcome.result()


class _Calls:
    """Signals have one handler in a process, so this has one instance."""

    def __init__(self) -> None:
        self.within = 0
        self._waiting = False

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        # Whoever insists gets out at once.
        if self.within and not self._waiting:
            self._waiting = True
            return
        signal.default_int_handler(number, frame)

    def left(self) -> None:
        self.within -= 1
        if self._waiting and not self.within:
            self._waiting = False
            raise KeyboardInterrupt


_calls = _Calls()


@contextlib.contextmanager
def interrupted_between_calls() -> Iterator[None]:
    """Holds for calls of the clients below; they end within a poll's time, or when the coordinator's is over."""
    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(signal.SIGINT, _calls.interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """What happens in here, an interruption waits for: what was done is counted."""
    _calls.within += 1
    try:
        yield
    finally:
        _calls.left()


class PatientConsumer(Consumer):
    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        _calls.within += 1
        try:
            return super().consume(num_messages, timeout)
        finally:
            _calls.left()

    def poll(self, timeout: float = -1) -> Message | None:
        _calls.within += 1
        try:
            return super().poll(timeout)
        finally:
            _calls.left()

    def close(self) -> None:
        _calls.within += 1
        try:
            super().close()
        finally:
            _calls.left()


class PatientProducer(Producer):
    def poll(self, timeout: float = -1) -> int:
        _calls.within += 1
        try:
            return super().poll(timeout)
        finally:
            _calls.left()

    def flush(self, timeout: float = -1) -> int:
        _calls.within += 1
        try:
            return super().flush(timeout)
        finally:
            _calls.left()


Partition = tuple[str, int]
"""A partition as the command line names it: topic and number."""


def exit_code_of(error: KafkaError) -> int:
    return next((exit_code for exit_code, codes in _EXIT_CODES.items() if error.code() in codes), EXIT_FAILED)


class AdvertisedNode(NamedTuple):
    broker_id: int
    host: str
    port: int


class ClusterSeen(NamedTuple):
    cluster_id: str
    nodes: tuple[AdvertisedNode, ...]


@dataclass(frozen=True, slots=True)
class BootstrapServer:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> tuple[BootstrapServer, ...]:
    """`host:port,[::1]:port`; without a port it is Kafka's. Raise `ClientFailed` for anything else."""
    addresses = []
    for one in (part.strip() for part in text.split(",")):
        host, separator, port = one.rpartition(":")
        if not separator or one.endswith("]"):
            host, port = one, str(KAFKA_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or "/" in host or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) <= PORT_MAX:
            raise ClientFailed(f'-b "{text}": "{one}" is not HOST:PORT. Write for example localhost:9092.', exit_code=EXIT_USAGE)
        addresses.append(BootstrapServer(host, int(port)))
    return tuple(addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConnection:
    """How to reach a cluster of which one bootstrap broker has just accepted a connection."""

    bootstrap: tuple[BootstrapServer, ...]
    timeout_s: float

    @property
    def named(self) -> str:
        return ",".join(map(str, self.bootstrap))

    def admin(self) -> AdminClient:
        return AdminClient(self._config())

    def consumer(self, config: Mapping[str, Any]) -> Consumer:
        return PatientConsumer({**self._config(), **config})

    def consumer_of_thread(self, config: Mapping[str, Any]) -> Consumer:
        """For another thread than the main one, which alone is interrupted."""
        return Consumer({**self._config(), **config})

    def producer(self, config: Mapping[str, Any]) -> Producer:
        return PatientProducer({**self._config(), **config})

    def metadata(self, admin: AdminClient) -> ClusterMetadata:
        """All topics and brokers: 100,000 topics take a broker seconds. Raise `ClientFailed`."""
        with self.answers_awaited():
            return interruptible(lambda: self._list_topics(admin))

    def _list_topics(self, admin: AdminClient) -> ClusterMetadata:
        clock = SystemClock()
        give_up_s = clock.monotonic_s() + self.timeout_s
        while True:
            began_s = clock.monotonic_s()
            try:
                return admin.list_topics(timeout=max(give_up_s - began_s, _LEAST_S))
            except KafkaException as error:
                if error.args[0].code() not in NO_ANSWER or clock.monotonic_s() + PAUSE_S >= give_up_s:
                    raise
            # The library gave up before the time: the broker closed the connection, or is not there yet.
            time.sleep(PAUSE_S)

    def result(self, future: "Future[T]") -> T:
        """Raise `KafkaException` for what a broker answered, `ClientFailed` if none did."""
        try:
            return future.result(self.timeout_s)
        except TimeoutError as error:
            raise self._unanswered() from error
        except KafkaException as error:
            if error.args[0].code() in NO_ANSWER:
                raise self._unanswered() from error
            raise

    @contextlib.contextmanager
    def answers_awaited(self) -> Iterator[None]:
        """Turns every error of a broker or of the library into `ClientFailed`."""
        try:
            yield
        except KafkaException as error:
            raise self.failure(error.args[0]) from error

    def failure(self, error: KafkaError) -> ClientFailed:
        if error.code() in NO_ANSWER:
            return self._unanswered()
        return ClientFailed(f"{self.named}: {message_of(error)}", exit_code=exit_code_of(error))

    def _unanswered(self) -> ClientFailed:
        """Looks for the cause: an address that was advertised and cannot be reached from here is the usual one."""
        seen = self._seen()
        if seen is None:
            causes = [cannot_reach(address, within_s=DIAGNOSE_WITHIN_S) for address in self.bootstrap]
            if all(causes):
                # It was there when the command began.
                return unreachable(zip(self.bootstrap, causes, strict=True))
            return ClientFailed(
                f"{self.named} accepts connections, but did not answer as a Kafka broker within {self.timeout_s:g} s. "
                "Is it a Kafka listener without TLS and SASL?",
                exit_code=EXIT_TIMED_OUT,
            )
        for broker in seen.nodes:
            cause = cannot_reach(BootstrapServer(broker.host, broker.port), within_s=DIAGNOSE_WITHIN_S)
            if cause is not None:
                return ClientFailed(
                    f"Reached {self.named}, but it advertises {broker.host}:{broker.port}, which cannot be reached from here "
                    f"({cause}). Set advertised listeners that clients can reach (Forebay: kafka.advertised_listeners).",
                    exit_code=EXIT_UNREACHABLE,
                )
        return ClientFailed(
            f"{self.named} did not answer within {self.timeout_s:g} s. Wait longer with --timeout.", exit_code=EXIT_TIMED_OUT
        )

    def _seen(self) -> ClusterSeen | None:
        """Asked without the library, which asks the addresses that are advertised, and without topics, of which there may be many."""

        for address in self.bootstrap:
            with contextlib.suppress(OSError, ValueError):
                return ask_for_cluster(address, within_s=DIAGNOSE_WITHIN_S)
        return None

    def _config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.named,
            "client.id": CLIENT_ID,
            "socket.connection.setup.timeout.ms": int(CONNECT_WITHIN_S * 1_000),
            "socket.timeout.ms": int(1_000 * min(max(self.timeout_s, REQUEST_WITHIN_DEFAULT_S), REQUEST_WITHIN_MAX_S)),
            "receive.message.max.bytes": ANSWER_BYTES_MAX,
            "broker.address.family": "any",
            "log_level": 0,
        }


def connect(bootstrap: str, *, timeout_s: float) -> ClusterConnection:
    """Raise `ClientFailed` unless one of the addresses accepts a connection."""
    addresses = parse_bootstrap(bootstrap)
    timeout_s = min(timeout_s, ANSWER_WITHIN_MAX_S)
    causes = []
    for address in addresses:
        cause = cannot_reach(address, within_s=min(timeout_s, CONNECT_WITHIN_S))
        if cause is None:
            return ClusterConnection(bootstrap=addresses, timeout_s=timeout_s)
        causes.append((address, cause))
    raise unreachable(causes)


def unreachable(causes: Iterable[tuple[BootstrapServer, str | None]]) -> ClientFailed:
    each = ", ".join(f"{address} ({cause})" for address, cause in causes)
    return ClientFailed(f"Cannot reach {each}. Set -b HOST:PORT or FOREBAY_BOOTSTRAP.", exit_code=EXIT_UNREACHABLE)


def cannot_reach(address: BootstrapServer, *, within_s: float) -> str | None:
    """Nothing, if it accepts a connection; otherwise why it does not."""
    try:
        socket.create_connection((address.host, address.port), timeout=within_s).close()
    except socket.gaierror:
        return "name does not resolve"
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except UnicodeError:
        return "not a host name"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def message_of(error: KafkaError) -> str:
    """What the broker said, as a sentence."""
    text = error.str().removeprefix("Broker: ").removeprefix("Local: ").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def ask_for_cluster(address: BootstrapServer, *, within_s: float) -> ClusterSeen:
    """Raise OSError if there is no answer, ValueError if it is not one of Kafka's."""
    client = CLIENT_ID.encode()
    # No topics, and none to be made.
    body = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, len(client)) + client + struct.pack(">i?", 0, False)
    with socket.create_connection((address.host, address.port), timeout=within_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _received(connection, 4))
        if not 0 < size <= _METADATA_BYTES_MAX:
            raise ValueError(f"no answer of Kafka: length={size}")
        return parse_cluster(_received(connection, size))


def parse_cluster(answer: bytes) -> ClusterSeen:
    """Raise ValueError for what is no such answer."""
    try:
        correlation_id, _, count = struct.unpack_from(">iii", answer)
        if correlation_id != _CORRELATION_ID:
            raise ValueError(f"an answer to another request: correlation_id={correlation_id}")
        position, nodes = 12, []
        for _ in range(count):
            (broker_id,) = struct.unpack_from(">i", answer, position)
            host, position = _text(answer, position + 4)
            (port,) = struct.unpack_from(">i", answer, position)
            _, position = _text(answer, position + 4)
            nodes.append(AdvertisedNode(broker_id, host or "", port))
        cluster_id, _ = _text(answer, position)
    except struct.error as error:
        raise ValueError(f"an answer that is too short: bytes={len(answer)}") from error
    return ClusterSeen(cluster_id or "", tuple(nodes))


def _text(answer: bytes, position: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", answer, position)
    start = position + 2
    if length < 0:
        return None, start
    if start + length > len(answer):
        raise ValueError(f"an answer that is too short: bytes={len(answer)}")
    return answer[start : start + length].decode(), start + length


def _received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionResetError("closed before it answered")
        found += piece
    return found
