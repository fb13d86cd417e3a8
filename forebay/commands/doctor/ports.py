"""Whether an address can be listened on, or who has it."""

import errno
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from forebay.commands.doctor.answers import NoAnswer, Respondent, at_http, at_kafka
from forebay.commands.doctor.finding import Finding, failed, ok, warning
from forebay.commands.doctor.metadata import Cluster
from process.settings.errors import StartError
from process.settings.model import Settings
from process.settings.notation import HttpAddress, Listener, bracketed, is_wildcard
from process.settings.ports import cannot_listen, owner_of_port

Ask = Callable[..., Respondent | NoAnswer]
ANSWER_S: Final = 5.0


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


def look(port: Port) -> Taken | None:
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
