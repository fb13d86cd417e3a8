"""The servers of `services` out of a Docker engine, for machines without Go: FOREBAY_TEST_SERVICES=containers.

An engine that does not answer is an error, never a skip.
"""

import contextlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from docker.models.containers import Container  # type: ignore[import-untyped]
from testcontainers.core.container import DockerContainer

from runtime.clock import SystemClock
from services import oxia, versitygw
from services.build import VERSITYGW
from services.oxia import OxiaServer
from services.ports import free_port
from services.process import READY_WITHIN_S, STOP_WITHIN_S, ServerError
from services.readiness import http_answers, oxia_answers
from services.versitygw import S3Server

S3_IMAGE: Final = f"versity/versitygw:v{VERSITYGW.version}"
_OXIA_PORT: Final = 6648
_S3_PORT: Final = 8333
_ASK_EVERY_S: Final = 0.05
_PING: Final = "from testcontainers.core.docker_client import DockerClient; DockerClient().client.ping()"

_DOCKERFILE: Final = Path(__file__).parents[2] / "Dockerfile"
_INSTRUCTION: Final = re.compile(r"^([A-Z]+)\s+(.*)$")

_clock = SystemClock()


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, in order."""
    lines = _DOCKERFILE.read_text().splitlines()
    matches = [_INSTRUCTION.match(line) for line in lines if line and not line.startswith("#")]
    assert all(matches), "an instruction over several lines is not read here"
    return [(match[1], match[2]) for match in matches if match]


def image_environment() -> dict[str, str]:
    """The variables of the last stage."""
    last = max(at for at, (name, _) in enumerate(instructions()) if name == "FROM")
    words = [word for name, rest in instructions()[last:] if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


@dataclass(slots=True)
class InContainer:
    """A running container as `services.process.Runs`. Its data are those of the container: they outlive its process, not the test run."""

    container: Container
    answers: Callable[[], bool]
    _is_paused: bool = False

    @property
    def pid(self) -> int:
        """As the machine of the engine counts; 0 when it does not run."""
        self.container.reload()
        return int(self.container.attrs["State"]["Pid"])

    def kill9(self) -> None:
        if self.pid:
            self.resume()
            self.container.kill("SIGKILL")
            self.container.wait(timeout=STOP_WITHIN_S)

    def pause(self) -> None:
        self.container.pause()
        self._is_paused = True

    def resume(self) -> None:
        if self._is_paused:
            self.container.unpause()
        self._is_paused = False

    def start(self) -> None:
        self.container.start()
        self.wait_ready()

    def stop(self) -> None:
        self.resume()
        self.container.stop(timeout=int(STOP_WITHIN_S))

    def wait_ready(self) -> None:
        give_up_s = _clock.monotonic_s() + READY_WITHIN_S
        while not self.answers():
            if _clock.monotonic_s() > give_up_s:
                said = self.container.logs(tail=20).decode(errors="replace")
                raise ServerError(f"{self.container.name} was not ready within {READY_WITHIN_S:.0f} s. The end of its log:\n{said}")
            time.sleep(_ASK_EVERY_S)


@contextlib.contextmanager
def oxia_container(*, shards: int = oxia.SHARDS) -> Iterator[OxiaServer]:
    """Ready; removed with its data at the end. Raise `ServerError`."""
    port = free_port()
    told = oxia.command("oxia", "/tmp/oxia", address=f"0.0.0.0:{_OXIA_PORT}", shards=shards)
    described = _described(oxia.IMAGE).with_command(told).with_bind_ports(_OXIA_PORT, port)
    with described as container:
        host = container.get_container_host_ip()
        yield OxiaServer(_ready(container, partial(oxia_answers, port, host)), host=host, port=port)


@contextlib.contextmanager
def s3_container(*, bucket: str = versitygw.BUCKET) -> Iterator[S3Server]:
    """Ready and with the bucket; removed with its data at the end. Raise `ServerError`."""
    port = free_port()
    served = shlex.join(["versitygw", *versitygw.options(f":{_S3_PORT}"), "posix", "/tmp/s3"])
    described = _described(S3_IMAGE).with_kwargs(entrypoint="/bin/sh").with_command(["-c", f"mkdir -p /tmp/s3/{bucket} && exec {served}"])
    with described.with_envs(**versitygw.environ({})).with_bind_ports(_S3_PORT, port) as container:
        host = container.get_container_host_ip()
        yield S3Server(_ready(container, partial(http_answers, port, host)), host=host, port=port, bucket=bucket)


def _described(image: str) -> DockerContainer:
    # A process of its own: the client leaves a socket open when nobody answers, which pytest would report instead of the reason.
    asked = subprocess.run([sys.executable, "-c", _PING], capture_output=True, text=True, timeout=READY_WITHIN_S, check=False)
    if asked.returncode != 0:
        reason = asked.stderr.strip().splitlines()[-1]
        raise ServerError(f"FOREBAY_TEST_SERVICES=containers, and no Docker engine answers: {reason}")
    return DockerContainer(image)


def _ready(container: DockerContainer, answers: Callable[[], bool]) -> InContainer:
    runs = InContainer(container.get_wrapped_container(), answers)
    runs.wait_ready()
    return runs
