"""What `forebay generate` writes, in a real Prometheus that scrapes three brokers and a compactor under load, one of which is killed."""

import asyncio
import contextlib
import json
import math
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from forebay.cli import application
from runtime.clock import SystemClock
from services.faults.plan import Fault, Rule
from services.faults.s3_proxy import s3_proxy
from services.ports import free_port
from services.prometheus import PrometheusServer, prometheus_program, running_prometheus
from services.versitygw import running_s3, url_of
from tests.kit.memory_watch import SOON_S
from tests.kit.serving import HOST, IN_OBJECTS, Served, get, serving

WITHIN_S: Final = 240.0
TOPIC: Final = "flights"
GROUP: Final = "readers"
PARTITIONS: Final = 6
DASHBOARDS: Final = ("overview", "write", "read", "cache", "compactor", "store", "groups", "runtime", "oxia")
SETTINGS: Final = {
    **IN_OBJECTS,
    "storage.early_bytes_per_second": "16KiB",
    "cost.budget_per_month": "100",
    "compactor.interval": "100ms",
    "compactor.segment_age": "0ms",
    "compactor.delete_interval": "100ms",
    "compactor.delete_grace": "0ms",
    "compactor.listen": f"{HOST}:0",
}
AFTER_A_TAKEOVER: Final = "groups: Time to load a group"
"""Seen when a group goes to another broker."""
VARIABLES: Final = {"$cluster": ".*", "$instance": ".*", "$__rate_interval": "1m"}
pytestmark = pytest.mark.timeout(900)  # the package of Prometheus is fetched once

_clock = SystemClock()


def until(is_so: Callable[[], object], what: str | Callable[[], object]) -> None:
    give_up_s = _clock.monotonic_s() + WITHIN_S
    while not is_so():
        assert _clock.monotonic_s() < give_up_s, f"not within {WITHIN_S:.0f} s: {what() if callable(what) else what}"
        time.sleep(0.2)


def generated(*words: str) -> str:
    ended = CliRunner().invoke(application, ["generate", *words])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def promtool(*words: str | Path, given: str | None = None) -> str:
    """What it says. It fails the test if promtool finds fault."""
    run = subprocess.run(
        [prometheus_program("promtool"), *words], input=given, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def asked(prometheus: PrometheusServer, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=SOON_S) as answer:
        return json.load(answer)["data"]


def values_of(prometheus: PrometheusServer, expression: str) -> list[float]:
    """What it gives now, without what is no number."""
    found = [float(one["value"][1]) for one in asked(prometheus, "query", query=expression)["result"]]
    return [value for value in found if not math.isnan(value)]


def firing(prometheus: PrometheusServer) -> set[tuple[str, str]]:
    found = [one for one in asked(prometheus, "alerts")["alerts"] if one["state"] == "firing"]
    return {(one["labels"]["alertname"], one["labels"].get("instance", "")) for one in found}


def expressions() -> dict[str, str]:
    """All that dashboards, alerts and recording rules ask for: of an alert, what it compares."""
    found: dict[str, str] = {}
    for name in DASHBOARDS:
        for panel in json.loads(generated("grafana", name))["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                found[f"{name}: {panel['title']}: {target['legendFormat']}"] = expression
    [group] = yaml.safe_load(generated("alerts"))["groups"]
    found |= {rule["alert"]: rule["expr"].rpartition(" ")[0].rpartition(" ")[0] for rule in group["rules"]}
    [group] = yaml.safe_load(generated("recording"))["groups"]
    return found | {rule["record"]: rule["record"] for rule in group["rules"]}


@contextlib.contextmanager
def under_load(brokers: list[Served]) -> Iterator[None]:
    """A producer at each broker, and a group that reads what all of them write."""
    is_over = threading.Event()

    def produce(broker: Served) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.timeout.ms": 10_000, "log_level": 0})
        number = 0
        while not is_over.wait(0.02):
            number += 1
            producer.produce(TOPIC, bytes(10 if number % 5 else 5_000), partition=number % PARTITIONS)
            producer.poll(0)
        producer.flush(SOON_S)

    def consume() -> None:
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        group = {"group.id": GROUP, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": bootstrap, **group})
        consumer.subscribe([TOPIC])
        while not is_over.is_set():
            consumer.consume(100, 0.2)
        consumer.close()

    threads = [threading.Thread(target=produce, args=[broker]) for broker in brokers]
    threads.append(threading.Thread(target=consume))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(WITHIN_S)


def address_of_compactor(broker: Served) -> str:
    def said() -> list[str]:
        return [str(event["address"]) for event in broker.events() if event.get("event") == "http listening" and "process" in event]

    until(said, "a compactor")
    return said()[0]


def written(folder: Path, *, brokers: list[Served], compactor: str) -> Path:
    """The folder of a Prometheus as a user would make it."""
    (folder / "alerts.yml").write_text(generated("alerts", "--for", "0s"))
    (folder / "recording.yml").write_text(generated("recording"))
    named = [word for broker in brokers for word in ("--broker", f"{HOST}:{broker.http_port}")]
    rules = ("--rules", "alerts.yml", "--rules", "recording.yml")
    configuration = folder / "prometheus.yml"
    configuration.write_text(generated("prometheus", *named, "--compactor", compactor, "--interval", "1s", *rules))
    return configuration


def until_all_have_values(prometheus: PrometheusServer, wanted: Mapping[str, str]) -> None:
    missing = dict(wanted)

    def have_values() -> bool:
        for name in [name for name, expression in missing.items() if values_of(prometheus, expression)]:
            del missing[name]
        return not missing

    until(have_values, lambda: missing)


async def test_every_expression_has_a_value_under_load_and_a_killed_broker_is_an_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_s3(tmp_path / "s3") as s3:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        async with s3_proxy(s3.endpoint) as proxy:
            proxy.plan.add(Rule(Fault.ANSWER, methods={"PUT"}, every=20))
            stores = {"storage.url": url_of(HOST, proxy.port), "metadata.url": f"sqlite:///{tmp_path}/meta.db"}
            await asyncio.to_thread(watched, tmp_path, {**SETTINGS, **stores})


def reported(prometheus: PrometheusServer) -> dict[str, Any]:
    ended = CliRunner().invoke(application, ["cost", "report", "--prometheus", prometheus.url, "--since", "1m", "-o", "json"])
    assert ended.exit_code == 0, ended.output
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def watched(folder: Path, settings: Mapping[str, str]) -> None:
    with contextlib.ExitStack() as closing:
        shared = {"storage.cache_dir": f"{folder}/cache"}  # of two: the others' objects are still read from the store
        settings = {**settings, "broker.rack": "a", "storage.zone_cache": "true"}
        differing = [{"compactor.run": "true"}, shared, shared]
        brokers = [
            closing.enter_context(serving(folder / f"b{number}", settings={**settings, "http.listen": f"{HOST}:{free_port()}", **more}))
            for number, more in enumerate(differing)
        ]
        compactor = address_of_compactor(brokers[0])
        configuration = written(folder, brokers=brokers, compactor=compactor)
        assert "SUCCESS" in promtool("check", "config", configuration)
        prometheus = closing.enter_context(running_prometheus(folder / "prometheus", configuration))
        admin = AdminClient({"bootstrap.servers": brokers[0].bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
        with pytest.raises(KafkaException, match="already exists"):
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
        with under_load(brokers):
            wanted = expressions()
            later = {name: wanted.pop(name) for name in list(wanted) if name.startswith(AFTER_A_TAKEOVER)}
            until_all_have_values(prometheus, wanted)
            # A series that has just appeared is not at one of the moments yet whose mean is taken.
            until(lambda: reported(prometheus)["storage_dollars"] is not None, "what is stored, in a report")
            bill = reported(prometheus)
            pages = [get(broker.http_port, "/metrics")[1].decode() for broker in brokers]
            pages.append(get(int(compactor.rpartition(":")[2]), "/metrics")[1].decode())
            [coordinator] = [broker for broker in brokers if any(event.get("group") == GROUP for event in broker.events())]
            assert coordinator.terminate() == 0
            until_all_have_values(prometheus, later)
            killed = next(broker for broker in brokers if broker is not coordinator)
            expected = ("BrokerDown", f"{HOST}:{killed.http_port}")
            until(lambda: expected not in firing(prometheus), "a broker that is scraped in time")
            killed.kill9()
            until(lambda: expected in firing(prometheus), "an alert of the killed broker")

    assert later
    assert bill["dollars_by_cause"]["flush"] > 0
    assert bill["requests"]["put"] > 0
    assert bill["storage_dollars"] >= 0
    assert "# TYPE forebay_event_loop_blocked_seconds histogram" in pages[0], "its panel shows 0 without a series: not seen above"
    assert {promtool("check", "metrics", given=page) for page in pages} == {""}
