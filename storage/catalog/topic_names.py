"""Which names a topic may have (Kafka's rules)."""

import re
from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


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
