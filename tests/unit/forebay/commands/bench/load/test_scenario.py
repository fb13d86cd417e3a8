"""A scenario's file → values, or each mistake with its line."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay.commands.bench.load.scenario import DISK, EVENTS, SIZES, Moment, Scenario, check_consistent, read_scenario, written_out
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed

SCENARIOS = sorted((Path(__file__).parents[6] / "scenarios").glob("*.yaml"))
SMALL = """\
name: small
stores: {kind: disk}
topics: [{name: load, partitions: 3}]
producers: [{topics: [load], records: 100}]
"""


def read(tmp_path: Path, text: str | bytes) -> Scenario:
    file = tmp_path / "s.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_scenario(file)


def mistakes(tmp_path: Path, text: str | bytes) -> list[str]:
    with pytest.raises(ClientFailed) as failed:
        read(tmp_path, text)
    assert failed.value.exit_code == EXIT_USAGE
    return str(failed.value).replace(f"{tmp_path}/", "").splitlines()


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
@pytest.mark.parametrize("is_short", [False, True])
def test_every_scenario_of_the_project_is_read_and_written_out_as_the_same(file: Path, is_short: bool, tmp_path: Path) -> None:
    scenario = read_scenario(file)
    if is_short:
        scenario = scenario.shortened()

    assert read(tmp_path, written_out(scenario)) == scenario


def test_there_are_scenarios() -> None:
    assert "three-brokers-one-killed" in {file.stem for file in SCENARIOS}


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    scenario = read(tmp_path, SMALL)

    (producers,) = scenario.producers
    assert (producers.count, producers.size, producers.rate, producers.codec, producers.idempotent) == (1, 1_120, None, "none", True)
    assert (scenario.cluster.brokers, scenario.consumers, scenario.events, scenario.sample_every) == (1, (), (), 5.0)


def test_json_is_a_scenario_too(tmp_path: Path) -> None:
    text = '{"name": "a", "stores": {"kind": "memory"}, "topics": [{"name": "t"}], "producers": [{"topics": ["t"], "records": 5}]}'

    assert read(tmp_path, text).topics_of(["t"]) == {"t": 12}


@pytest.mark.parametrize(("name", "size_bytes"), SIZES.items())
def test_a_size_has_a_name_or_is_a_number(name: str, size_bytes: int, tmp_path: Path) -> None:
    for written in (name, size_bytes):
        (producers,) = read(tmp_path, SMALL.replace("records: 100", f"records: 100, size: {written}")).producers
        assert producers.size == size_bytes


def test_topics_of_a_count_are_numbered(tmp_path: Path) -> None:
    scenario = read(tmp_path, SMALL.replace("partitions: 3", "partitions: 3, count: 2"))

    assert scenario.topics_of(["load"]) == {"load-1": 3, "load-2": 3}


def test_an_event_happens_after_a_time_or_a_share_of_the_records(tmp_path: Path) -> None:
    text = SMALL + "cluster: {brokers: 2}\nevents: [{at: 20s, do: kill, target: 1, for: 5s}, {at: 40%, do: roll}]\n"

    timed, shared = read(tmp_path, text).events
    assert (timed.at, timed.lasts_s) == (Moment(after_s=20.0), 5.0)
    assert shared.at == Moment(acked_percent=40)


def test_the_short_form_has_a_fiftieth_of_the_records_on_disk(tmp_path: Path) -> None:
    text = SMALL.replace("disk", "services").replace("records: 100", "records: 5000, count: 2")
    text += "phases: [{name: long, seconds: 60}]\nevents: [{at: 60s, do: s3_away, for: 9s}, {at: 60s, do: pause, target: 1, for: 9s}]\n"

    short = read(tmp_path, text).shortened()

    assert (short.stores.kind, short.records, short.phases[0].seconds) == (DISK, 100, 5.0)
    assert [(event.do, event.at.after_s, event.lasts_s) for event in short.events] == [("pause", 2.0, 2.0)]


def test_every_mistake_is_named_with_its_line_and_with_what_is_allowed(tmp_path: Path) -> None:
    text = """\
name: a b
stores: {kind: discs}
cluster: {broker: 3, compactors: 9}
topics:
  - {name: load, partitions: none}
producers:
  - {topics: [load], records: 0, size: huge, recods: 4}
events:
  - {at: soon, do: explode}
routing: {mode: nearest}
name: again
"""

    found = mistakes(tmp_path, text)

    assert [(line.split(":")[1], line.split()[1]) for line in found] == [
        ("1", "name"),
        ("2", "stores.kind"),
        ("3", "cluster.broker"),
        ("3", "cluster.compactors"),
        ("5", "topics.partitions"),
        ("7", "producers.records"),
        ("7", "producers.size"),
        ("7", "producers.recods"),
        ("9", "events.at"),
        ("9", "events.do"),
        ("10", "routing.mode"),
        ("11", "name"),
    ]
    assert found[1] == 's.yaml:2: stores.kind "discs" is not allowed: write services, disk or memory.'
    assert "did you mean brokers? allowed here: brokers, workers, zones, compactors, settings, addresses, http." in found[2]
    assert "did you mean records?" in found[7]
    assert found[9].endswith(f"write {', '.join(EVENTS[:-1])} or {EVENTS[-1]}.")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (b"", "s.yaml:1: is empty: write name, stores, topics and producers."),
        (b"\xff\xfe", "s.yaml:1: is not UTF-8 text."),
        (b"a: [1", "s.yaml:1: is not YAML (expected ',' or ']', but got '<stream end>')."),
        (b"- 1", "s.yaml:1: a scenario is no section: write name, stores,"),
        (b"[" * 5_000, "s.yaml:1: is not YAML"),
        (b"a: " + b"x" * 2**20, "s.yaml: is larger than a scenario may be: 1,048,576 bytes."),
    ],
)
def test_what_is_no_scenario_at_all_is_refused(text: bytes, mistake: str, tmp_path: Path) -> None:
    assert mistakes(tmp_path, text)[0].startswith(mistake)


words = st.sampled_from(
    [
        "name",
        "stores",
        "kind",
        "disk",
        "topics",
        "load",
        "producers",
        "records",
        "events",
        "at",
        "1s",
        "40%",
        "do",
        "kill",
        "max",
        "~",
        "1e9",
    ]
)
values = st.recursive(
    words | st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=6),
    max_leaves=20,
)


@given(st.dictionaries(words, values, max_size=6))
def test_whatever_a_file_says_is_a_scenario_or_is_refused(tmp_path_factory: pytest.TempPathFactory, said: dict[str, Any]) -> None:
    file = tmp_path_factory.mktemp("hostile") / "s.yaml"
    file.write_text(yaml.safe_dump(said))

    with contextlib.suppress(ClientFailed):
        read_scenario(file)


@given(st.binary(max_size=60))
def test_whatever_bytes_a_file_has_it_is_a_scenario_or_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("hostile") / "s.yaml"
    file.write_bytes(data)

    with contextlib.suppress(ClientFailed):
        read_scenario(file)


def test_a_file_that_is_not_there_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(ClientFailed, match=r"no\.yaml: cannot be read \(No such file or directory\)"):
        read_scenario(tmp_path / "no.yaml")


def test_sections_that_repeat_each_other_by_alias_are_bounded(tmp_path: Path) -> None:
    text = SMALL + "events: [&one {at: 1s, do: pause, target: 1, for: 1s}" + ", *one" * 20_000 + "]\n"

    (mistake,) = mistakes(tmp_path, text)
    assert mistake.endswith("the scenario has more than 10,000 values: write fewer.")


@pytest.mark.parametrize(
    ("added", "line", "words"),
    [
        ("cluster: {brokers: 2, zones: [a, b, c]}", 5, "zones are more than the 2 brokers"),
        ("cluster: {settings: {storage.flush_intervall: 5ms}}", 5, "is no setting: did you mean storage.flush_interval?"),
        ("cluster: {settings: {storage.url: memory://}}", 5, "is what the load chooses itself"),
        ("consumers: [{group: g, topics: [other]}]", 5, "other is none of the scenario's: load"),
        ("consumers: [{group: g, topics: [load]}, {group: g, topics: [load]}]", 5, "two entries have one group"),
        ("events:\n  - {at: 1s, do: kill}", 6, "kill needs a target"),
        ("events:\n  - {at: 1s, do: roll, target: 1}", 6, "roll has no target"),
        ("events: [{at: 1s, do: kill, target: 4}]", 5, "events.target 4 is none of the 1 brokers"),
        ("events: [{at: 1s, do: pause, target: 1}]", 5, "pause needs to end"),
        ("events: [{at: 1s, do: add_broker, for: 1s}]", 5, "add_broker has no duration"),
        ("events: [{at: 1s, do: s3_away, for: 1s}]", 5, "s3_away needs stores.kind services"),
        ("phases: [{seconds: 5, rate_factor: 2}]", 5, "give the producers a rate"),
        ("routing: {mode: owners, k: 1}", 4, "routing.mode owners names the broker of each request"),
        ("cluster: {http: [127.0.0.1:8070]}", 5, "cluster.http belongs to cluster.addresses"),
        ("cluster: {brokers: 2, settings: {http.allow_writes: no}}\nevents: [{at: 1s, do: drain, target: 1}]", 6, "drain asks by HTTP"),
        ("events: [{at: 1s, do: drain}]", 5, "drain needs a target"),
        ("cluster: {brokers: 16, workers: 4}", 5, "16 brokers of 4 workers are more than 32 processes"),
    ],
)
def test_what_does_not_go_together_is_refused(added: str, line: int, words: str, tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, f"{SMALL}{added}\n")

    assert mistake.startswith(f"s.yaml:{line}: ")
    assert words in mistake


RUNNING = """\
name: there
cluster: {addresses: [10.0.0.1:9092, "[::1]:9092"], http: [10.0.0.1:8070, "[::1]:8070"]}
topics: [{name: load}]
producers: [{topics: [load], records: 5, client: http}]
routing: {mode: owners, k: 2, pick: least_in_flight}
"""


def test_a_cluster_that_runs_already_is_named_by_its_addresses_and_needs_no_stores(tmp_path: Path) -> None:
    scenario = read(tmp_path, RUNNING)

    assert scenario.cluster.runs_already
    assert scenario.cluster.addresses == ("10.0.0.1:9092", "[::1]:9092")
    assert (scenario.routing.mode, scenario.routing.k, scenario.routing.pick, scenario.routing.seed) == ("owners", 2, "least_in_flight", 1)
    assert read(tmp_path, written_out(scenario)) == scenario
    assert scenario.shortened().cluster == scenario.cluster


@pytest.mark.parametrize(
    ("changed", "into", "line", "words"),
    [
        ("name: there", "name: there\nstores: {kind: disk}", 2, "stores are those of the cluster that runs"),
        ("cluster: {", "cluster: {brokers: 2, ", 2, "leave brokers, workers, zones, compactors and settings out"),
        ("k: 2", "k: 3", 5, "routing.k 3 is more than the 2 brokers"),
        ("routing", "events:\n  - {at: 1s, do: kill, target: 1}\nrouting", 6, "kill needs a cluster that the load starts itself"),
        ("routing", "events:\n  - {at: 1s, do: roll}\nrouting", 6, "roll needs a cluster that the load starts itself"),
        ("10.0.0.1:9092", "10.0.0.1", 2, "write a list of HOST:PORT"),
        ("10.0.0.1:9092", "10.0.0.1:99999", 2, "a port is a number from 1 to 65,535"),
    ],
)
def test_what_a_cluster_that_runs_already_cannot_have_is_refused(changed: str, into: str, line: int, words: str, tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, RUNNING.replace(changed, into, 1))

    assert mistake.startswith(f"s.yaml:{line}: ")
    assert words in mistake


def test_clients_by_http_of_a_cluster_that_runs_already_need_its_http_addresses(tmp_path: Path) -> None:
    (first, second) = mistakes(tmp_path, RUNNING.replace(', http: [10.0.0.1:8070, "[::1]:8070"]', ""))

    assert first.startswith("s.yaml:4: client: http needs to know where")
    assert second.startswith("s.yaml:5: routing.k 2 is more than the 0 brokers")


def test_a_scenario_without_stores_or_addresses_is_refused(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, SMALL.replace("stores: {kind: disk}\n", ""))

    assert mistake == "s.yaml:1: the scenario has no stores, and needs one: write stores: {kind: disk}."


@pytest.mark.parametrize(
    ("stores", "words"),
    [
        ("kind: disk, latency_ms: 5", "stores.latency_ms and s3_faults are those of an S3 server: write kind: services"),
        ("kind: disk, s3_faults: {slow_down: 0.1}", "stores.latency_ms and s3_faults are those of an S3 server"),
        ("kind: services, s3_faults: {slowdown: 0.1}", "write a share of requests for slow_down, internal_error or lost_reply"),
        ("kind: services, s3_faults: {slow_down: 2}", "slow_down is a share of requests from 0 to 0.5, for example 0.01"),
        ("kind: services, s3_faults: [slow_down]", "write a share of requests for slow_down"),
        ("kind: services, latency_ms: 1s", "write a whole number from 0 to 10,000"),
    ],
)
def test_a_slow_or_failing_store_is_an_s3_server_and_its_faults_are_shares(stores: str, words: str, tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, SMALL.replace("stores: {kind: disk}", f"stores: {{{stores}}}"))

    assert mistake.startswith("s.yaml:2: ")
    assert words in mistake


def test_the_short_form_has_no_failing_store(tmp_path: Path) -> None:
    text = SMALL.replace("stores: {kind: disk}", "stores: {kind: services, latency_ms: 20, s3_faults: {slow_down: 0.01}}")

    scenario = read(tmp_path, text)

    assert (scenario.stores.latency_ms, scenario.stores.s3_faults) == (20, {"slow_down": 0.01})
    assert read(tmp_path, written_out(scenario)) == scenario
    assert (scenario.shortened().stores.latency_ms, scenario.shortened().stores.has_proxy) == (0, False)


@pytest.mark.parametrize("config", ["cleanup.policy: compact", "retention.ms: 1"])
def test_topics_whose_records_go_are_refused(config: str, tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, SMALL.replace("partitions: 3", f"configs: {{{config}}}"))

    assert "makes records go, which would look like a loss" in mistake


def test_one_process_has_its_memory_for_itself(tmp_path: Path) -> None:
    scenario = read(tmp_path, SMALL + "cluster: {brokers: 3}\n")
    changed: Any = type(scenario.stores)(kind="memory", s3_faults={})

    with pytest.raises(ClientFailed, match="memory is that of one process"):
        check_consistent(Scenario(**{name: getattr(scenario, name) for name in scenario.__slots__} | {"stores": changed}))
