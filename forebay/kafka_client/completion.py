"""Names of topics and groups, where a shell completes them. Whatever goes wrong, nothing is offered and nothing is said."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from forebay.kafka_client.failures import ClientFailed
from forebay.kafka_client.options import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from forebay.kafka_client.connection import ClusterConnection

WITHIN_S: Final = 1.0
"""Longer than this, nobody waits for a completion."""

OFFERED_MAX: Final = 500

_HARMLESS: Final = re.compile(r"[\w.][\w.@%+=:,/-]*")
"""Anybody may name a group `$(reboot)`, and a shell that put this into a line would run it."""


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    return _offered(context, incomplete, lambda connection, admin: connection.metadata(admin).topics)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    return _offered(context, incomplete, _groups)


def _groups(connection: "ClusterConnection", admin: "AdminClient") -> Iterable[str]:
    from forebay.commands.group.administration import read_groups

    return [group.name for group in read_groups(connection, admin).groups]


def _offered(context: typer.Context, incomplete: str, names: "Callable[[ClusterConnection, AdminClient], Iterable[str]]") -> list[str]:
    from forebay.kafka_client.connection import connect

    try:
        connection = connect(context.params.get("bootstrap") or DEFAULT_BOOTSTRAP, timeout_s=WITHIN_S)
        found = names(connection, connection.admin())
    except ClientFailed:
        return []
    return sorted(name for name in found if name.startswith(incomplete) and _HARMLESS.fullmatch(name))[:OFFERED_MAX]
