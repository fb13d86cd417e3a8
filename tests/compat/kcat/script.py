"""kcat plays those steps of tests/compat/README.md that a command line for producing and consuming can."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading

from tests.compat.playing import BOOTSTRAP, PREFIX, Player, digest, until, values_of

TIMEOUT_S = 20.0
RECORDS, LINE, ONCE, CODECS, PAIR = (f"{PREFIX}-{name}" for name in ("records", "line", "once", "codecs", "pair"))
ERRORS = {
    "Broker: Offset out of range": "OFFSET_OUT_OF_RANGE",
    "Broker: Message size too large": "MESSAGE_TOO_LARGE",
    "Broker: Unknown topic or partition": "UNKNOWN_TOPIC_OR_PARTITION",
}


def error_name(error: BaseException) -> str | None:
    return next((name for text, name in ERRORS.items() if text in str(error)), None)


player = Player(error_name)


def kcat(*arguments: str, stdin: str = "") -> str:
    """Its output. Raise RuntimeError with what it said of an error."""
    done = subprocess.run(
        ["kcat", "-b", BOOTSTRAP, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def read(topic: str, *arguments: str, form: str) -> list[str]:
    return kcat("-C", "-t", topic, "-e", "-q", "-f", f"{form}\n", *arguments).splitlines()


def offset_at(topic: str, partition: int, time: int) -> int:
    """-2 asks for the earliest, -1 for the latest."""
    found = kcat("-Q", "-t", f"{topic}:{partition}:{time}")
    return int(found.rpartition(" offset ")[2])


class Member:
    """`kcat -G`: its partitions as it reports them, the records as it reads them."""

    def __init__(self, seen: set[str]) -> None:
        quick = ["-X", "session.timeout.ms=10000", "-X", "heartbeat.interval.ms=500", "-X", "auto.offset.reset=earliest"]
        self._process = subprocess.Popen(
            ["kcat", "-b", BOOTSTRAP, "-u", *quick, "-f", "%p %o\n", "-G", PAIR, RECORDS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.partitions = 0
        self._seen = seen
        self._readers = [threading.Thread(target=self._read_records), threading.Thread(target=self._read_assignments)]
        for reader in self._readers:
            reader.start()

    def _read_records(self) -> None:
        assert self._process.stdout
        self._seen.update(line.strip() for line in self._process.stdout)

    def _read_assignments(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            if f"Group {PAIR} rebalanced" in line:
                self.partitions = len(re.findall(r"\[\d+\]", line)) if "assigned:" in line else 0

    def leave(self) -> None:
        """It commits what it read, and closes."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)


@player.step
def cluster() -> object:
    found = json.loads(kcat("-L", "-J"))
    return {"brokers": len(found["brokers"]), "controller": found["controllerid"] in {broker["id"] for broker in found["brokers"]}}


@player.step
def codecs() -> object:
    wanted = {codec: [value.decode() for value in values_of(codec)] for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    for codec, values in wanted.items():
        kcat("-P", "-t", CODECS, "-z", codec, stdin="".join(f"{value}\n" for value in values))
    found = read(CODECS, "-o", "beginning", form="%s")
    return {codec: sum(value in found for value in values) for codec, values in wanted.items()}


@player.step
def consume() -> object:
    lines = []
    for one in read(RECORDS, "-o", "beginning", form="%p %o %T %k %h %S %s"):
        partition, offset, timestamp_ms, key, headers, size, value = one.split(" ", 6)
        lines.append(f"{partition} {offset} {timestamp_ms} {key} {'null' if size == '-1' else value} {headers}")
    return {"records": len(lines), "digest": digest(lines)}


@player.step
def seek() -> object:
    (found,) = read(RECORDS, "-p", "1", "-o", "7", "-c", "1", form="%o %k")
    offset, key = found.split()
    return {"offset": int(offset), "key": key}


@player.step
def offsets() -> object:
    return {"earliest": offset_at(RECORDS, 0, -2), "latest": offset_at(RECORDS, 0, -1)}


@player.step
def offsets_by_time() -> object:
    none = offset_at(RECORDS, 0, 1_700_000_000_000)
    return {"found": offset_at(RECORDS, 0, 1_600_000_006_001), "none": none if none >= 0 else None}


@player.step
def group_of_two() -> object:
    seen: set[str] = set()
    members = [Member(seen)]

    def sizes() -> list[int]:
        threading.Event().wait(0.02)
        return sorted(member.partitions for member in members)

    try:
        # Only then is there something to commit when the second joins.
        until(lambda: sizes() == [3] and len(seen) == 60, "A has all partitions and records")
        members.append(Member(seen))
        until(lambda: sizes() == [1, 2], "the partitions are shared out")
        members.pop().leave()
        until(lambda: sizes() == [3], "A has all partitions again")
    finally:
        for member in members:
            member.leave()
    return {"alone": 3, "together": [1, 2], "again": 3, "records": len(seen)}


@player.refused
def fetch_out_of_range() -> None:
    read(LINE, "-p", "0", "-o", "1000", "-X", "auto.offset.reset=error", form="%o")


@player.step
def idempotent() -> object:
    kcat("-P", "-t", ONCE, "-X", "enable.idempotence=true", stdin="".join(f"{number}\n" for number in range(100)))
    return {"latest": offset_at(ONCE, 0, -1)}


@player.refused
def message_too_large() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(300_000))
        file.flush()
        # A file that is named is one value, whatever its bytes.
        kcat("-P", "-t", RECORDS, "-p", "0", "-X", "message.max.bytes=1000000", file.name)


@player.refused
def missing_topic() -> None:
    raise RuntimeError(kcat("-L", "-t", f"{PREFIX}-nowhere"))


player.play()
