"""Which names a topic may have, and which are reserved (Kafka's rules)."""

import re
from collections.abc import Mapping
from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")

_SEGMENT_BYTES: Final = "104857600"
INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": _SEGMENT_BYTES},
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": _SEGMENT_BYTES,
        "unclean.leader.election.enable": "false",
    },
    "__share_group_state": {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "retention.ms": "-1",
        "segment.bytes": _SEGMENT_BYTES,
    },
}
"""Topics in which Kafka's brokers keep state, with the configs that they get when a client names them. Clients may not write to them."""
INTERNAL_PARTITIONS: Final = 50
NEVER_A_TOPIC: Final = "__cluster_metadata"
"""The log of Kafka's controllers: no client can make a topic of that name."""


def validate_name(name: str) -> str | None:
    """What is wrong with `name`, in words for the client; None if it may be used."""
    if not name:
        return "the topic name is empty"
    if name in {".", ".."}:
        return "the topic name cannot be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"the topic name {name!r} has a character other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Names with equal keys are one to a metric system that writes '.' as '_': Kafka lets only one of them exist."""
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    return "." in name or "_" in name
