"""One client plays its steps against a broker behind a recorder."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from tests.compat import codecs
from tests.compat.clients import Client
from tests.compat.provision import provide
from tests.compat.recorder import HOST, Recorder, recording
from tests.compat.scenario import Said, differences
from tests.kit.kafka_messages import frame, plain
from tests.kit.raw_client import RawClient
from tests.kit.serving import Served, serving

Broker = Literal["forebay", "roles", "kafka"]
"""`roles`: three brokers of Forebay with a part of the roles each; clients are given the address of the one for producers."""

ROLES: Final = ("consume", "groups,admin", "produce")
"""In the order of starting: a broker knows the roles of those that were there before it."""
KNOWN_WITHIN_S: Final = 60.0
KNOWN_LOOK_EVERY_S: Final = 0.1
_PRODUCE: Final = (0, 9)
PLAY_WITHIN_S: Final = 150.0
"""README.md gives a script two minutes; the rest is for a process to start and to end on a busy machine."""
_OUTPUT_BYTES_MAX: Final = 1024 * 1024
_clock = SystemClock()
_LAST_LINES: Final = 15
_PREFIX: Final = "compat"
_BROKEN: Final = ("error", "critical")
_CUT_OFF: Final = ("protocol_violation", "request_not_answered")
"""Events that came with a connection closed by the broker."""

_FOREBAY: Final = {"kafka.auto_create_topics": "false", "groups.initial_rebalance_delay": "0ms"}
_KAFKA: Final = {"offsets.topic.num.partitions": "1"}
"""Beside what services/kafka.py sets, which has no auto-creation and no delay either. Fifty partitions take long to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What came of it. `exercised` is (api key, version) → requests; `stderr` the end of what the client said there."""

    differences: Sequence[str]
    said: Sequence[Said]
    exercised: Mapping[tuple[int, int], int]
    stderr: str


def play(client: Client, against: Broker = "forebay") -> Play:
    """Play all steps of `client` against a new broker. What goes wrong in the client is a difference.

    Raise `services.build.BuildError` if the client cannot be had.
    """
    command = client.command()
    with (
        tempfile.TemporaryDirectory(prefix="compat-") as folder,
        recording() as recorder,
        _broker(against, Path(folder), recorder) as (bootstrap, to_read, complaints),
    ):
        if client.provided:
            provide(client.provided, bootstrap, _PREFIX)
            recorder.forget()
        said, wrong, stderr = _run([*command, recorder.bootstrap, _PREFIX], Path(folder))
        exercised = recorder.exercised()
        if "codecs" not in client.lacks:
            written = codecs.written(to_read, f"{_PREFIX}-codecs")
            wrong += [f"codecs: no batch in {codec} was written" for codec in ("none", *client.codecs) if codec not in written]
        wrong += complaints()
        if recorder.unreadable:
            wrong.append(f"{recorder.unreadable} connections sent what is no request of Kafka's")
    return Play(
        differences=[
            *wrong,
            *differences(said, codecs=client.codecs, lacks=client.lacks, brokers=len(ROLES) if against == "roles" else 1),
        ],
        said=said,
        exercised=exercised,
        stderr=stderr,
    )


@contextlib.contextmanager
def _broker(against: Broker, folder: Path, recorder: Recorder) -> Iterator[tuple[str, str, Callable[[], list[str]]]]:
    """A broker that advertises the recorder: its own address, that of one to read from, and what went wrong so far, a sentence each."""
    if against == "forebay":
        settings = {**_FOREBAY, "kafka.advertised_listeners": f"PLAINTEXT://{recorder.bootstrap}"}
        with serving(None, settings=settings) as served:
            recorder.target = (HOST, served.kafka_port)
            yield served.bootstrap, served.bootstrap, lambda: complaints_of(served.events(), is_alive=served.is_alive)
        return
    if against == "roles":
        with contextlib.ExitStack() as closing:
            brokers: list[Served] = []
            for number, roles in enumerate(ROLES, 1):
                own = {"broker.id": str(number), "broker.roles": roles}
                if number == len(ROLES):
                    own["kafka.advertised_listeners"] = f"PLAINTEXT://{recorder.bootstrap}"
                brokers.append(closing.enter_context(serving(folder / "data", settings={**_FOREBAY, **own})))
            reader, others, writer = brokers
            for one in (reader, others):
                _await_refusal(one)
            recorder.target = (HOST, writer.kafka_port)
            yield (
                writer.bootstrap,
                reader.bootstrap,
                lambda: [said for one in brokers for said in complaints_of(one.events(), is_alive=one.is_alive)],
            )
        return
    # Kafka is installed for those who ask for it only.
    from services.kafka import running_kafka

    with running_kafka(folder / "kafka", advertised=recorder.bootstrap, settings=_KAFKA) as server:
        recorder.target = (HOST, int(server.bootstrap.rpartition(":")[2]))
        yield server.bootstrap, server.bootstrap, list


def _await_refusal(broker: Served) -> None:
    """Return when the broker sends producers on: when it knows by now that another has the role."""
    fields = {"acks": -1, "timeout": 1_000, "topic_data": [{"name": "none", "partition_data": [{"index": 0, "records": b""}]}]}
    give_up_s = _clock.monotonic_s() + KNOWN_WITHIN_S
    while True:
        with RawClient(broker.kafka_port) as client:
            client.send(frame(*_PRODUCE, fields, correlation_id=1))
            received = client.receive()
        assert received is not None, "the broker closed the connection"
        (answer,) = plain(*_PRODUCE, received)["responses"]
        if answer["partition_responses"][0]["error_code"] == ErrorCode.not_leader_or_follower:
            return
        assert _clock.monotonic_s() < give_up_s, f"no refusal within {KNOWN_WITHIN_S:.0f} s: {answer}"
        threading.Event().wait(KNOWN_LOOK_EVERY_S)


def complaints_of(events: Iterable[Mapping[str, object]], *, is_alive: bool) -> list[str]:
    """A client that tries again does not see an error of the broker's own, which is one all the same."""
    said = [f"the broker said: {event}" for event in events if event.get("level") in _BROKEN or event.get("event") in _CUT_OFF]
    return said if is_alive else [*said, "the broker ended before the client"]


def _run(command: Sequence[str], folder: Path) -> tuple[list[Said], list[str], str]:
    """The steps that it printed, what was wrong with the run as a whole, and the end of its standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_"))}
    out_path, error_path = folder / "client.out", folder / "client.err"
    wrong = []
    with out_path.open("wb") as out, error_path.open("wb") as error:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=error, cwd=folder, env=environment, start_new_session=True
        )
        try:
            code = process.wait(PLAY_WITHIN_S)
            if code != 0:
                wrong.append(f"the client ended with exit code {code}")
        except subprocess.TimeoutExpired:
            wrong.append(f"the client did not end within {PLAY_WITHIN_S:.0f} s")
        finally:
            # Its children, too: a client may be a runtime under a launcher.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with out_path.open("rb") as out:
        said, unread = parse(out.read(_OUTPUT_BYTES_MAX).decode(errors="replace"))
    return said, [*wrong, *unread], "\n".join(error_path.read_text(errors="replace").splitlines()[-_LAST_LINES:])


def parse(output: str) -> tuple[list[Said], list[str]]:
    """The steps in a client's standard output, and a sentence for each line that is none."""
    said, wrong = [], []
    for line in output.splitlines():
        try:
            given = json.loads(line)
        except ValueError:
            given = None
        match given:
            case {"step": str(step), "saw": saw} if len(given) == 2:
                said.append(Said(step, saw=saw))
            case {"step": str(step), "failed": str(failed)} if len(given) == 2:
                said.append(Said(step, failed=failed))
            case _:
                wrong.append(f"printed what is no step: {line[:200]}")
    return said, wrong
