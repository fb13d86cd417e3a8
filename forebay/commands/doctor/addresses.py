"""Addresses of a broker: can they be listened on, or who has them, and do the advertised ones lead here, as a client would see it.

Questions to a server block, for at most the time they are given.
"""

import errno
import http.client
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from forebay.commands.doctor.finding import Finding, failed, ok, skipped, warning
from forebay.commands.doctor.metadata import Cluster
from forebay.kafka_client.connection import BootstrapServer, ask_for_cluster, cannot_reach
from process.settings.errors import StartError
from process.settings.model import Settings
from process.settings.notation import HttpAddress, Listener, bracketed, is_loopback, is_wildcard
from process.settings.ports import cannot_listen, owner_of_port

ADVERTISED_FIX: Final = "Set kafka.advertised_listeners to an address that clients can reach"
NAME_UNKNOWN: Final = "name does not resolve"
ANSWER_S: Final = 5.0


class Respondent(NamedTuple):
    """A server that answers. `cluster_id`: the cluster, if it is a broker; `broker_id`: which of the cluster's, where that is known."""

    what: str
    cluster_id: str
    broker_id: int | None

    def __str__(self) -> str:
        which = "" if self.broker_id is None else f" {self.broker_id}"
        return f"{self.what}{which} of cluster {self.cluster_id}"


class NoAnswer(NamedTuple):
    """`is_closed`: nothing accepts connections there, as far as one can see from here."""

    cause: str
    is_closed: bool


class _BrokerFacts(msgspec.Struct):
    broker_id: int
    cluster_id: str
    version: str


def at_kafka(host: str, port: int, *, within_s: float) -> Respondent | NoAnswer:
    """Asked as clients ask first: with Metadata."""
    address = BootstrapServer(host, port)
    if (cause := cannot_reach(address, within_s=within_s)) is not None:
        return NoAnswer(cause, is_closed=True)
    try:
        found = ask_for_cluster(address, within_s=within_s)
    except (OSError, ValueError):
        return NoAnswer(f"what listens at {address} does not answer as a Kafka broker without TLS and SASL", is_closed=False)
    ids = [node.broker_id for node in found.nodes if (node.host, node.port) == (host, port)]
    return Respondent("broker" if ids else "a Kafka broker", found.cluster_id, ids[0] if ids else None)


def at_http(host: str, port: int, *, within_s: float) -> Respondent | NoAnswer:
    """Asked as people do."""
    if (cause := cannot_reach(BootstrapServer(host, port), within_s=within_s)) is not None:
        return NoAnswer(cause, is_closed=True)
    connection = http.client.HTTPConnection(host, port, timeout=within_s)
    try:
        connection.request("GET", "/api/v1/broker")
        facts = msgspec.json.decode(connection.getresponse().read(), type=_BrokerFacts)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError):
        return NoAnswer("what listens there is not the HTTP side of a Forebay broker", is_closed=False)
    finally:
        connection.close()
    return Respondent(f"forebay {facts.version}, broker", facts.cluster_id, facts.broker_id)


Ask = Callable[..., Respondent | NoAnswer]


class Port(NamedTuple):
    """An address of the settings. `fix`: what `serve` says to type for another; `ask` finds out who answers there."""

    check: str
    host: str
    port: int
    fix: str
    ask: Ask

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


class Taken(NamedTuple):
    """Why it cannot be listened on: `error` as `serve` says it; `answer` is of who is there already."""

    error: StartError
    answer: Respondent | NoAnswer | None
    owner: str


def ports_of(settings: Settings) -> list[Port]:
    found = [_of_listener(listener) for listener in settings.kafka.listeners]
    return [*found, _of_http(settings.http.listen)]


def look_at_port(port: Port) -> Taken | None:
    """None if it can be listened on. Blocks for as long as who is there may take to answer."""
    try:
        _bind(port.host, port.port)
    except OSError as error:
        refusal = cannot_listen(error, host=port.host, port=port.port, fix=port.fix)
        owner = owner_of_port(port.port)
        in_use = error.errno == errno.EADDRINUSE
        answer = port.ask(reachable_host(port.host), port.port, within_s=ANSWER_S) if in_use else None
        return Taken(refusal, answer, owner)
    return None


def of_port(port: Port, taken: Taken | None, cluster: Cluster) -> Finding:
    """A broker of the same cluster that listens there is what an operator wants to see; anybody else keeps `serve` from starting."""
    if taken is None:
        return ok(port.check, f"{port} can be listened on" if port.port else f"{bracketed(port.host)}: the system assigns a port")
    match taken.answer:
        case Respondent() as answer if is_ours(answer, cluster):
            return ok(port.check, f"{port} is listened on by {_who(answer, taken.owner)}: a broker on these settings runs")
        case Respondent() as answer if not cluster.is_known:
            which = "Whether it is one on these settings is not known"
            return warning(port.check, f"{taken.error} It is {_who(answer, '')}. {which}.")
        case Respondent() as answer:
            return failed(port.check, f"{taken.error} It is {_who(answer, '')}, not of the cluster of metadata.url.")
        case NoAnswer(cause, is_closed=False):
            return failed(port.check, f"{taken.error} {cause[:1].upper()}{cause[1:]}.")
        case _:
            return failed(port.check, str(taken.error))


def is_ours(answer: Respondent, cluster: Cluster) -> bool:
    return cluster.is_known and answer.cluster_id == cluster.cluster_id


def reachable_host(host: str) -> str:
    """Where one who is on this machine reaches a listener."""
    if not is_wildcard(host):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def _who(answer: Respondent, owner: str) -> str:
    return f"{answer} ({owner})" if owner else str(answer)


def _of_listener(listener: Listener) -> Port:
    fix = f"--set kafka.listeners={listener._replace(port=listener.port + 100)}"
    return Port(f"port: {listener.name}", listener.host, listener.port, fix, at_kafka)


def _of_http(address: HttpAddress) -> Port:
    return Port("port: HTTP", address.host, address.port, f"--set http.listen={address._replace(port=address.port + 1)}", at_http)


def _bind(host: str, port: int) -> None:
    """As a broker does, but without listening: a broker that starts at this moment can have the address all the same."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind((host, port))


def of_address(
    bound: Listener, advertised: Listener, answer: Respondent | NoAnswer | None, cluster: Cluster, *, is_served: bool
) -> Finding:
    """`answer`: what is at the advertised address, None if it was not asked; `is_served`: a broker on these settings runs."""
    check = f"advertised: {advertised.name}"
    where = f"{advertised}"
    misleads = is_loopback(advertised.host) and not is_loopback(bound.host)
    if misleads:
        return warning(
            check,
            f"{where} leads clients to their own machine, while {bound} is for other machines, too. {ADVERTISED_FIX}, "
            "unless all clients are on this machine or a port is forwarded to it.",
        )
    match answer:
        case None:
            return skipped(check, f"the port of {where} is not known before the broker listens")
        case Respondent() if is_ours(answer, cluster):
            return ok(check, f"{where} is answered by {answer}")
        case Respondent() if not cluster.is_known:
            return ok(check, f"{where} is answered by {answer}; whether that is the cluster of these settings is not known")
        case Respondent():
            return failed(check, f"{where} is answered by {answer}, which is another cluster. {ADVERTISED_FIX}.")
        case NoAnswer(cause, is_closed=True) if cause == NAME_UNKNOWN:
            return warning(check, f"{where} does not resolve from here. {ADVERTISED_FIX}, or let its name be resolved where clients are.")
        case NoAnswer(cause, is_closed=True) if not is_served:
            return skipped(check, f"no broker listens now: {where}: {cause}")
        case NoAnswer(cause):
            return warning(check, f"{where} cannot be used from here: {cause}. {ADVERTISED_FIX}, if clients cannot use it either.")
