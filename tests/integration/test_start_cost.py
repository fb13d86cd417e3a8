"""What a broker on files and SQLite loads before its port opens. Names of modules, because CPU seconds would be those of the machine."""

import re
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.kit.serving import serving

FOR_LATER = {
    "aiohttp": "the HTTP server starts when Kafka's clients are served already",
    "aioboto3": "S3",
    "botocore": "S3",
    "obstore": "S3",
    "grpc": "Oxia",
    "google.protobuf": "Oxia",
    "confluent_kafka": "commands that are Kafka clients",
    "yaml": "a settings file",
    "rich.console": "tables of commands",
    "pygments": "decorated tracebacks",
    "pydantic": "nothing of ours",
    "hypothesis.core": "nothing of ours but tests",
    "kio.schema.metadata": "the first Metadata request",
    "kio.schema.api_versions": "the first ApiVersions request",
}
OPENED = "a port opens\n"
SAY_WHEN_PORTS_OPEN = f"""
import os, socket

class Saying(socket.socket):
    def listen(self, *args):
        os.write(2, {OPENED.encode()!r})
        super().listen(*args)

socket.socket = Saying
"""
"""Not by the broker's log, which a thread writes a little later."""
_IMPORTED = re.compile(r"^import time:\s*\d+ \|\s*\d+ \| *(\S+)$", re.MULTILINE)


def test_a_broker_on_files_opens_its_port_before_it_loads_what_it_may_never_need(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SAY_WHEN_PORTS_OPEN)
    with serving(tmp_path, environ={"PYTHONPROFILEIMPORTTIME": "1", "PYTHONPATH": str(tmp_path)}, afresh=True) as served:
        AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0}).list_topics(timeout=20)
        until_open, _, after = served.log_path.read_text().partition(OPENED)
    before, later = set(_IMPORTED.findall(until_open)), set(_IMPORTED.findall(after))

    assert {"broker.assembly", "broker.handlers.log.produce", "broker.handlers.log.fetch", "storage.metadata.sqlite.store"} <= before
    assert {name for name in before if any(name == one or name.startswith(f"{one}.") for one in FOR_LATER)} == set()
    assert {"aiohttp", "kio.schema.metadata.v13.response"} <= later
    assert {name for name in before | later if "zone" in name and not name.startswith("zoneinfo")} == set(), "storage.zone_cache is off"


def test_no_handler_but_those_of_produce_and_fetch_is_loaded_with_the_broker() -> None:
    code = (
        "import sys, broker.assembly; from broker.protocol import apis; "
        "print([api.name for api in apis.APIS if f'broker.handlers.{api.module}' in sys.modules])"
    )

    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)

    assert ended.stdout == "['Produce', 'Fetch']\n"
