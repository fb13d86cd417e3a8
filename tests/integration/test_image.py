"""The command of the image, run as a process with its variables: others reach it, it says that it is healthy, and it stops in order."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from services.ports import free_port
from tests.integration.command_line import forebay, soon
from tests.kit.containers import image_environment, instructions

ANOTHER_ADDRESS: Final = "127.0.0.2"
"""What the address of a container is to others: not the 127.0.0.1 that its loopback has."""
ENDS_WITHIN_S: Final = 100.0


def environment(*, kafka_port: int, http_port: int) -> dict[str, str]:
    """The variables of the image, with ports that are free here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_", "AWS_"))}
    ports = {":9092": f":{kafka_port}", ":8070": f":{http_port}"}
    given = {name: re.sub(r":(?:9092|8070)$", lambda port: ports[port[0]], value) for name, value in image_environment().items()}
    return kept | given | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "FOREBAY_COMPACTOR__RUN": "false"}


def is_healthy(environ: dict[str, str]) -> bool:
    """By the image's own check."""
    (rest,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    check: list[str] = json.loads(rest.partition("CMD ")[2])
    return subprocess.run(check, env=environ, check=False, capture_output=True, timeout=ENDS_WITHIN_S).returncode == 0


def test_a_container_that_serves_is_reachable_and_healthy_and_stops_in_order(tmp_path: Path) -> None:
    kafka_port, http_port = free_port(), free_port()
    environ = environment(kafka_port=kafka_port, http_port=http_port)
    given = dict(instructions())
    command = [*json.loads(given["ENTRYPOINT"]), *json.loads(given["CMD"])]

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{ANOTHER_ADDRESS}:{http_port}/readyz", timeout=ENDS_WITHIN_S) as answer:
                return bool(answer.status == 200)
        except urllib.error.URLError:
            return False

    assert not is_healthy(environ)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            soon(is_ready)
            assert is_healthy(environ)
            assert forebay(f"{ANOTHER_ADDRESS}:{kafka_port}", "cluster", "info")[0] == 0
            process.send_signal(signal.SIGTERM)
            code = process.wait(ENDS_WITHIN_S)
        finally:
            process.kill()
            process.wait()

    assert code == 0, (tmp_path / "log").read_text()


def test_the_ports_that_are_exposed_are_those_that_are_listened_on() -> None:
    image = image_environment()
    listening = [image[name] for name in ("FOREBAY_KAFKA__LISTENERS", "FOREBAY_HTTP__LISTEN")]

    assert shlex.split(dict(instructions())["EXPOSE"]) == [address.rpartition(":")[2] for address in listening]
