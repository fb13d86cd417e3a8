"""Finds out which server answers at a port. These calls block, for at most the time they are given."""

import http.client
from typing import NamedTuple

import msgspec

from forebay.kafka_client.connection import BootstrapServer, ask_for_cluster, cannot_reach


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
