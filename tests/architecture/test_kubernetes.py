"""The manifests and the policy of docs/guides/deploy.md, checked without a cluster: they parse, and the code accepts their settings."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from process.settings.loading import Loaded, load
from tests.architecture.test_compose import ENDS_AFTER_S

PAGE: Final = (Path(__file__).parents[2] / "docs" / "guides" / "deploy.md").read_text(encoding="utf-8")


def manifests() -> dict[str, dict[str, Any]]:
    """By kind; of several, the last one."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return {one["kind"]: one for block in blocks for one in yaml.safe_load_all(block) if "kind" in one}


def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    return found


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """As the broker has its settings in the first pod. The folder has no forebay.yaml."""
    monkeypatch.chdir(tmp_path)
    pod_of = {"POD_NAME": "forebay-eu-1a-0", "POD_NAMESPACE": "kafka"}
    [container] = pod()["containers"]
    told = {one["name"]: re.sub(r"\$\((\w+)\)", lambda name: pod_of[name[1]], one.get("value", "")) for one in container["env"]}
    return load(environ={name: value for name, value in told.items() if name.startswith("FOREBAY_")})


def test_a_pod_is_advertised_by_the_name_that_its_headless_service_gives_it(loaded: Loaded) -> None:
    stateful_set = manifests()["StatefulSet"]
    name = f"{stateful_set['metadata']['name']}-0.{stateful_set['spec']['serviceName']}.kafka.svc.cluster.local"

    assert [listener.host for listener in loaded.settings.kafka.advertised_listeners] == [name]
    assert loaded.settings.http.advertised is not None
    assert loaded.settings.http.advertised.host == name
    assert loaded.settings.broker.rack == pod()["nodeSelector"]["topology.kubernetes.io/zone"]


def test_a_pod_is_given_the_time_its_shutdown_may_take(loaded: Loaded) -> None:
    shutdown = loaded.settings.shutdown

    assert pod()["terminationGracePeriodSeconds"] >= shutdown.drain.total_seconds() + shutdown.deadline.total_seconds() + ENDS_AFTER_S


def test_probes_ask_paths_that_every_process_serves() -> None:
    [container] = pod()["containers"]
    asked = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}

    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_the_policy_is_json_and_names_each_action_once() -> None:
    [policy] = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
    actions = [action for statement in policy["Statement"] for action in statement["Action"]]

    assert len(actions) == len(set(actions)) == 6
