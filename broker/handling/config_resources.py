"""The resources that have configs, in the numbers of the config APIs, and what may be wrong with the name of one."""

from typing import Final

from kio.schema.errors import ErrorCode

from broker.handling.refusal import Refusal
from storage.catalog.topic import validate_name

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32


def refuse_type(resource_type: int) -> Refusal:
    return Refusal(ErrorCode.invalid_request, f"configs of resource type {resource_type} are not supported")


def refuse_group_name(name: str) -> Refusal | None:
    """Why there is no such group; None for any name but the empty one: a group has its configs before it has members."""
    return None if name else Refusal(ErrorCode.invalid_request, "group name must not be empty")


def refuse_topic_name(name: str) -> Refusal | None:
    """Why no topic can have that name; None if one can."""
    problem = validate_name(name)
    return None if problem is None else Refusal(ErrorCode.invalid_topic_exception, problem)


def refuse_broker_name(name: str, *, own_id: int) -> Refusal | None:
    """Why this broker does not answer for that one; None for its own id. An empty name is the caller's business."""
    if not (name.isascii() and name.isdecimal()):
        return Refusal(ErrorCode.invalid_request, f"broker id must be an integer, but it is: {name!r}")
    if name != str(own_id):
        return Refusal(ErrorCode.invalid_request, f"unexpected broker id: expected {own_id} or an empty string, got {name}")
    return None
