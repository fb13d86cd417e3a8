"""docker-compose.yml and the Dockerfile, checked without an engine: what they say is what the code accepts."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from forebay.cli import application
from process.settings.loading import Loaded, load
from process.settings.model import warning_of_listeners
from runtime.version import forebay_version
from services import oxia, versitygw
from tests.kit.containers import S3_IMAGE, image_environment, instructions

ROOT: Final = Path(__file__).parents[2]
BROKERS: Final = ("broker-1", "broker-2", "broker-3")
OXIA_PORT: Final = 6648
S3_PORT: Final = 8333
ENDS_AFTER_S: Final = 30
"""What docs/guides/deploy.md ("Stopping") adds to the settings."""

_PINNED: Final = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?(@sha256:[0-9a-f]{64})?")


@pytest.fixture(autouse=True)
def _in_an_empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither a forebay.yaml nor a variable adds to what the files here say."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("FOREBAY_", "KAFKA_"))]:
        monkeypatch.delenv(name)


def services() -> dict[str, Any]:
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    found: dict[str, Any] = composed["services"]
    return found


def settings_of(broker: str) -> Loaded:
    """As the broker has them in its container: the image's, then those of the compose file."""
    return load(environ=image_environment() | services()[broker]["environment"])


@pytest.mark.parametrize("broker", BROKERS)
def test_every_setting_of_a_broker_is_accepted(broker: str) -> None:
    loaded = settings_of(broker)

    # In a container there is no other way to be reached.
    assert loaded.advice == (warning_of_listeners(loaded.settings.kafka.listeners),)
    assert str(loaded.settings.broker.id) == broker.removeprefix("broker-")


@pytest.mark.parametrize("broker", BROKERS)
def test_clients_on_the_machine_and_in_containers_each_get_an_address_that_leads_back(broker: str) -> None:
    kafka = settings_of(broker).settings.kafka
    bound = {listener.name: listener for listener in kafka.listeners}
    advertised = {listener.name: listener for listener in kafka.advertised_listeners}
    published = dict(reversed(port.rsplit(":", 2)[1:]) for port in services()[broker]["ports"])

    assert set(advertised) == set(bound) == {"EXTERNAL", "INTERNAL"}
    assert {listener.host for listener in bound.values()} == {"0.0.0.0"}
    assert (advertised["INTERNAL"].host, advertised["INTERNAL"].port) == (broker, bound["INTERNAL"].port)
    assert (advertised["EXTERNAL"].host, str(advertised["EXTERNAL"].port)) == ("localhost", published[str(bound["EXTERNAL"].port)])


def test_what_differs_between_brokers_differs_between_all() -> None:
    loaded = [settings_of(broker).settings for broker in BROKERS]
    ports = [port for broker in BROKERS for port in services()[broker]["ports"]]

    assert [one.kafka.advertised_listeners[0].port for one in loaded] == [9092, 9093, 9094]
    assert len({one.broker.rack for one in loaded}) == len({one.broker.id for one in loaded}) == len(BROKERS)
    assert len({one.storage.url for one in loaded}) == len({one.metadata.url for one in loaded}) == 1
    assert len(ports) == len({port.rsplit(":", 1)[0] for port in ports})


def test_brokers_find_both_stores_with_the_credentials_these_have() -> None:
    settings = settings_of("broker-1").settings
    told, root = services()["broker-1"]["environment"], services()["s3"]["environment"]

    assert settings.metadata.url == oxia.url_of("oxia", OXIA_PORT)
    assert settings.storage.url == versitygw.url_of("s3", S3_PORT)
    assert {name: told[name] for name in versitygw.CREDENTIALS} == versitygw.CREDENTIALS
    assert root == versitygw.environ({})


def test_the_stores_are_those_of_the_tests() -> None:
    assert services()["oxia"]["image"] == oxia.IMAGE
    # What 0.14.0 needs, and no later version.
    assert "environment" not in services()["oxia"]
    assert services()["oxia"]["command"] == oxia.command("oxia", "/data", address=f"0.0.0.0:{OXIA_PORT}", metrics_address="127.0.0.1:8080")
    assert services()["s3"]["image"] == S3_IMAGE
    [script] = services()["s3"]["command"]
    begin, _, served = script.partition(" && exec ")
    assert begin == f"mkdir -p /data/{versitygw.BUCKET}"
    assert shlex.split(served) == ["versitygw", *versitygw.options(f"0.0.0.0:{S3_PORT}"), "--health", "/health", "posix", "/data"]


def test_every_image_is_pinned() -> None:
    images = [service["image"] for service in services().values()]
    stages = [rest.split()[0] for name, rest in instructions() if name == "FROM"]

    assert [image for image in images + stages if not _PINNED.fullmatch(image)] == []
    assert {services()[broker]["image"] for broker in BROKERS} == {f"forebay:{forebay_version()}"}


def test_every_service_has_a_health_check_and_what_it_needs_is_waited_for() -> None:
    found = services()
    awaited = {
        (needed, condition["condition"]) for service in found.values() for needed, condition in service.get("depends_on", {}).items()
    }

    assert [name for name, service in found.items() if not service["healthcheck"]["test"]] == []
    assert awaited == {("oxia", "service_healthy"), ("s3", "service_healthy")}


def test_nothing_is_reachable_from_other_machines() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]

    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_a_broker_is_given_the_time_its_shutdown_may_take() -> None:
    loaded = settings_of("broker-1").settings

    for broker in BROKERS:
        grace_s = float(services()[broker]["stop_grace_period"].removesuffix("s"))
        assert grace_s >= loaded.shutdown.drain.total_seconds() + loaded.shutdown.deadline.total_seconds() + ENDS_AFTER_S


def test_the_command_line_and_the_settings_of_the_image_are_accepted() -> None:
    given = dict(instructions())
    command = [*json.loads(given["ENTRYPOINT"]), *json.loads(given["CMD"])]
    runner = CliRunner()

    helped = runner.invoke(application, [*command[1:], "--help"])
    shown = runner.invoke(application, ["config", "show", "--output", "json"], env=image_environment())

    assert command == ["forebay", "serve"]
    assert helped.exit_code == 0, helped.output
    assert shown.exit_code == 0, shown.output
    assert "PLAINTEXT://0.0.0.0:9092" in shown.output


def test_what_the_image_copies_exists_and_is_not_ignored() -> None:
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from=")]
    sources = {source for words in copied for source in words}
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert sources == kept


def test_the_image_holds_every_package_of_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    [listed] = re.findall(r"^\[tool\.hatch\.build\.targets\.wheel\]\npackages = (\[.*\])$", text, re.MULTILINE)
    copied = {word for name, rest in instructions() if name == "COPY" for word in rest.split()[:-1]}

    assert set(json.loads(listed)) <= copied


def test_the_image_does_not_run_as_root() -> None:
    users = [rest for name, rest in instructions() if name == "USER"]

    assert users
    assert users[-1] not in {"0", "root"}
