"""What chance does to a broker, stroke by stroke: spoilt frames, conversations, HTTP, and frames that are begun and not ended.

Each stroke ends in a reply or in the end of a connection; which of them it was is counted. All of it follows from a seed.
"""

import random
import socket
import struct
import uuid
from collections import Counter, deque
from collections.abc import Sequence

from tests.integration.mutations import Frame, may_wait, mutated, mutated_http, sensible_frames, valid_frames
from tests.integration.test_bad_input import create_topic
from tests.kit.kafka_values import Pool
from tests.kit.raw_client import ANSWER_WITHIN_S, API_VERSIONS, RawClient, header, prefixed
from tests.kit.record_batches import record_batch
from tests.kit.serving import HOST, Served

CONNECTIONS = 8
PROBE_ID = 0x5EED0000
CONVERSATION_MAX = 12
HALVES_MAX = 24
CREATE_EVERY = 25
HALF_BYTES_MAX = 4_000_000
TIMEOUT_S = 0.1
"""With requests that may rightly wait."""

WORDS = (
    *("consumer", "range", "sticky", "connect", "member-1", "instance-1", "raw", "0", "1", "", "PLAINTEXT"),
    *("cleanup.policy", "compact", "delete", "retention.ms", "compression.type", "zstd", "num.partitions", "no.such.config"),
    *("fuzz-a", "fuzz-b", "fuzz.c", "fuzz_c", "group-a", "group-b", "broker.id", "__consumer_offsets"),
)
TIMES_MS = (0, 1, 100, 1_000, 6_000, 10_000, 30_000)
NUMBERS = (-1, 0, 1, 2, 3, 5, 10, 100, 1_000, 30_000)


class Stuck(AssertionError):
    """Neither reply nor end: which bytes, so that it can be played again."""


class Line:
    """One of the connections that carry spoilt frames; opened again whenever the broker has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client = RawClient(port)
        self._probe = PROBE_ID
        self._waits = False

    def send(self, data: bytes, *, waits: bool) -> None:
        """The bytes, and a request behind them whose reply proves that they are done with."""
        self._probe += 1
        self._waits = waits
        probe = prefixed(header(API_VERSIONS, 0, correlation_id=self._probe))
        if not self._client.send_bytes(data + (b"" if waits else probe)):
            return
        if waits:
            # It may be in the middle of a frame, or in a long poll: what ends it is the end of the connection.
            self._client.finish_sending()

    def settle(self) -> str:
        """Wait for the reply, or for the connection to be closed. Raise TimeoutError if neither comes."""
        wanted = struct.pack(">i", self._probe)
        while (reply := self._client.receive()) is not None:
            if not self._waits and reply[:4] == wanted:
                return "answered"
        self._client.close()
        self._client = RawClient(self._port)
        return "closed after its end" if self._waits else "closed"

    def close(self) -> None:
        self._client.close()


class Fuzz:
    """`close` it. `topic` exists and is nobody else's."""

    def __init__(self, served: Served, *, seed: int, topic: str, topic_ids: Sequence[uuid.UUID] = ()) -> None:
        self.seed = seed
        self.outcomes: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._served = served
        self._topic = topic
        self._strokes = 0
        blobs = [
            b"",
            bytes(record_batch(b"a", b"b")),
            bytes(record_batch(b"z" * 500, codec=2)),
            b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff",
        ]
        pool = Pool(texts=(*WORDS, topic, topic), numbers=NUMBERS, milliseconds=TIMES_MS, blobs=blobs, uuids=topic_ids)
        self._valid = valid_frames(self._chance, topic, rounds=2)
        self._sensible = sensible_frames(self._chance, pool, rounds=3)
        self._lines = [Line(served.kafka_port) for _ in range(CONNECTIONS)]
        self._halves: deque[RawClient] = deque()

    def close(self) -> None:
        for line in (*self._lines, *self._halves):
            line.close()

    def stroke(self) -> None:
        """A spoilt frame on every line, one conversation, and now and then one of the others. Raises `Stuck`."""
        if self._strokes % CREATE_EVERY == 0:
            self._create()
        self._strokes += 1
        self._frames()
        self._conversation()
        if self._chance.random() < 0.3:
            self._http()
        if self._chance.random() < 0.1:
            self._half()

    def _create(self) -> None:
        """Again, should a stroke have deleted it."""
        with RawClient(self._served.kafka_port) as client:
            client.ask(create_topic(self._topic))

    def _frames(self) -> None:
        sent = []
        for line in self._lines:
            data, waits = self._spoilt()
            line.send(data, waits=waits)
            sent.append(data)
        for line, data in zip(self._lines, sent, strict=True):
            try:
                self.outcomes[f"frame {line.settle()}"] += 1
            except TimeoutError:
                raise self._stuck("frame", data) from None

    def _spoilt(self) -> tuple[bytes, bool]:
        """Bytes to send, and whether the broker may rightly wait for more of them, or for records."""
        chance = self._chance
        frame = mutated(chance, self._valid)
        if chance.random() < 0.05:
            claimed = chance.choice((len(frame) + chance.choice((-1, 1, 1000)), chance.choice((0, 1, -1, 2**20, 2**26, 2**31 - 1))))
            return struct.pack(">i", claimed) + frame, True
        return prefixed(frame), may_wait(frame)

    def _conversation(self) -> None:
        """Requests of one connection, not waiting for each other, the last one cut off at times. Some wait for others:
        the end of the connection ends that.
        """
        chance = self._chance
        parts = []
        for number in range(chance.randint(1, CONVERSATION_MAX)):
            frame: Frame = chance.choice(self._sensible)
            body = mutated(chance, [Frame(b"", frame.body)]) if chance.random() < 0.2 else frame.body
            # Answers are told apart by their number, which stands behind api key and version.
            parts.append(prefixed(frame.head[:4] + struct.pack(">i", number) + frame.head[8:] + body))
        data = b"".join(parts)
        if chance.random() < 0.2:
            data = data[: chance.randrange(len(data))]
        else:
            data += prefixed(header(API_VERSIONS, 0, correlation_id=PROBE_ID))
        with RawClient(self._served.kafka_port) as client:
            cut = chance.randrange(len(data) + 1)
            if client.send_bytes(data[:cut]):
                client.send_bytes(data[cut:])
            client.wait_at_most(TIMEOUT_S)
            replies: list[int] = []
            try:
                self._listen(client, replies)
            except TimeoutError:
                client.finish_sending()
                client.wait_at_most(ANSWER_WITHIN_S)
                try:
                    self._listen(client, replies)
                except TimeoutError:
                    raise self._stuck("conversation", data) from None
        assert replies == sorted(replies), f"replies out of order: {replies} seed={self.seed} data={data[:2000].hex()}"
        self.outcomes["conversation answered" if replies else "conversation closed"] += 1

    def _listen(self, client: RawClient, replies: list[int]) -> None:
        """Until the end, or the answer of the probe."""
        while (reply := client.receive()) is not None:
            number = int.from_bytes(reply[:4], "big", signed=True)
            if number == PROBE_ID:
                return
            replies.append(number)

    def _http(self) -> None:
        data = mutated_http(self._chance)
        with socket.create_connection((HOST, self._served.http_port), timeout=ANSWER_WITHIN_S) as client:
            received = b""
            try:
                client.sendall(data)
                if self._chance.random() < 0.5:
                    client.shutdown(socket.SHUT_WR)
                client.settimeout(TIMEOUT_S)
                while piece := client.recv(65_536):
                    received += piece
            except TimeoutError:
                pass  # it may wait for the rest of a request
            except OSError:
                pass  # closed before it had read everything
        self.outcomes["HTTP answered" if received else "HTTP closed"] += 1

    def _half(self) -> None:
        """A frame that is begun and not ended; so many stay open that the oldest is closed for each new one."""
        chance = self._chance
        if len(self._halves) == HALVES_MAX:
            self._halves.popleft().close()
        client = RawClient(self._served.kafka_port)
        self._halves.append(client)
        claimed = chance.choice((10, 1_000, 100_000, HALF_BYTES_MAX))
        client.send_what_fits(struct.pack(">i", claimed) + header(0, 9) + bytes(chance.randrange(max(1, min(claimed, 60_000) - 40))))
        self.outcomes["half"] += 1

    def _stuck(self, kind: str, data: bytes) -> Stuck:
        return Stuck(f"neither reply nor end: {kind} seed={self.seed} strokes={self.outcomes.total()} data={data[:4000].hex()}")
