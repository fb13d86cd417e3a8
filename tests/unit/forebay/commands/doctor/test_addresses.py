"""Ports, advertised addresses, broker.id and what is exposed, as verdicts."""

import pytest

from forebay.commands.doctor.addresses import NoAnswer, Port, Respondent, Taken, of_address, of_port, ports_of, reachable_host
from forebay.commands.doctor.finding import FindingStatus
from forebay.commands.doctor.metadata import Cluster
from forebay.commands.doctor.run import of_exposure, of_id
from process.settings.errors import EXIT_FAILED, StartError
from process.settings.model import Settings
from process.settings.notation import Listener, parse_listeners
from storage.catalog.brokers import BrokerRecord, Endpoint

OURS, NONE_YET, UNKNOWN = Cluster(True, "ours"), Cluster(True, None), Cluster()
OF_OURS, OF_ANOTHER = Respondent("broker", "ours", 1), Respondent("broker", "another", 4)
IN_USE = StartError("Port 9092 on 127.0.0.1 is in use (pid 7, java). Choose another.", exit_code=EXIT_FAILED)


def port() -> Port:
    return ports_of(Settings())[0]


def test_every_listener_and_http_have_a_port() -> None:
    settings = Settings(kafka={"listeners": "A://127.0.0.1:1,B://127.0.0.1:2"})

    assert [one.check for one in ports_of(settings)] == ["port: A", "port: B", "port: HTTP"]


@pytest.mark.parametrize(
    ("answer", "cluster", "verdict", "phrase"),
    [
        (OF_OURS, OURS, FindingStatus.OK, "broker 1 of cluster ours (pid 7, java): a broker on these settings runs"),
        (OF_ANOTHER, OURS, FindingStatus.FAILED, f"{IN_USE} It is broker 4 of cluster another, not of the cluster of metadata.url."),
        (OF_ANOTHER, NONE_YET, FindingStatus.FAILED, "not of the cluster of metadata.url"),
        (OF_OURS, UNKNOWN, FindingStatus.WARNING, "is not known"),
        (NoAnswer("it does not speak Kafka", is_closed=False), OURS, FindingStatus.FAILED, f"{IN_USE} It does not speak Kafka."),
        (NoAnswer("connection refused", is_closed=True), OURS, FindingStatus.FAILED, str(IN_USE)),
        (None, OURS, FindingStatus.FAILED, str(IN_USE)),
    ],
)
def test_a_port_that_is_taken_is_judged_by_who_has_it(
    answer: Respondent | NoAnswer | None, cluster: Cluster, verdict: FindingStatus, phrase: str
) -> None:
    found = of_port(port(), Taken(IN_USE, answer, "pid 7, java"), cluster)

    assert found.verdict is verdict
    assert phrase in found.detail


def test_a_port_that_is_free_is_well() -> None:
    assert of_port(port(), None, OURS).detail == "127.0.0.1:9092 can be listened on"
    assert "assigns a port" in of_port(port()._replace(port=0), None, OURS).detail


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("broker-1", "broker-1")])
def test_every_address_is_reached_at_the_loopback_one(host: str, reached: str) -> None:
    assert reachable_host(host) == reached


@pytest.mark.parametrize(
    ("bound", "address", "answer", "cluster", "is_served", "verdict", "phrase"),
    [
        ("127.0.0.1", "127.0.0.1", OF_OURS, OURS, True, FindingStatus.OK, "is answered by broker 1 of cluster ours"),
        ("0.0.0.0", "b-1", OF_ANOTHER, OURS, True, FindingStatus.FAILED, "which is another cluster"),
        ("0.0.0.0", "b-1", OF_ANOTHER, UNKNOWN, True, FindingStatus.OK, "is not known"),
        ("0.0.0.0", "localhost", OF_OURS, OURS, True, FindingStatus.WARNING, "leads clients to their own machine"),
        (
            "0.0.0.0",
            "b-1",
            NoAnswer("name does not resolve", is_closed=True),
            OURS,
            False,
            FindingStatus.WARNING,
            "does not resolve from here",
        ),
        ("0.0.0.0", "b-1", NoAnswer("connection refused", is_closed=True), OURS, False, FindingStatus.SKIPPED, "no broker listens now"),
        ("0.0.0.0", "b-1", NoAnswer("connection refused", is_closed=True), OURS, True, FindingStatus.WARNING, "cannot be used from here"),
        ("0.0.0.0", "b-1", NoAnswer("it is no Kafka", is_closed=False), OURS, False, FindingStatus.WARNING, "it is no Kafka"),
        ("0.0.0.0", "b-1", None, OURS, False, FindingStatus.SKIPPED, "not known before the broker listens"),
    ],
)
def test_an_advertised_address_is_judged_as_a_client_sees_it(
    bound: str, address: str, answer: Respondent | NoAnswer | None, cluster: Cluster, is_served: bool, verdict: FindingStatus, phrase: str
) -> None:
    found = of_address(Listener("A", bound, 9092), Listener("A", address, 9092), answer, cluster, is_served=is_served)

    assert found.verdict is verdict
    assert phrase in found.detail


def broker(broker_id: int, host: str) -> BrokerRecord:
    return BrokerRecord(broker_id=broker_id, listeners=(Endpoint("A", host, 9092),), rack=None, version="1", started_at_ms=0, session_id=1)


def test_an_id_that_another_broker_has_is_a_failure() -> None:
    listeners = parse_listeners("A://here:9092")
    taken, own = Cluster(True, "ours", (broker(3, "there"),)), Cluster(True, "ours", (broker(3, "here"),))

    found = {name: of_id(3, listeners, cluster) for name, cluster in {"taken": taken, "own": own, "free": OURS, "unknown": UNKNOWN}.items()}

    assert {name: one.verdict for name, one in found.items() if one is not None} == {
        "taken": FindingStatus.FAILED,
        "own": FindingStatus.OK,
        "free": FindingStatus.OK,
        "unknown": FindingStatus.SKIPPED,
    }
    assert of_id(None, listeners, taken) is None


def test_what_everybody_can_reach_is_a_warning() -> None:
    here = Settings()
    everywhere = Settings(kafka={"listeners": "A://0.0.0.0:9092"}, http={"listen": "0.0.0.0:8070", "insecure": True})

    assert [one.verdict for one in of_exposure(here)] == [FindingStatus.OK]
    assert [one.verdict for one in of_exposure(everywhere)] == [FindingStatus.WARNING, FindingStatus.WARNING]
