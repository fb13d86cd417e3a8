"""Which topic is the demo's own. The stores may hold topics of others, of any name: what a run did not make, no run touches.

Every run makes a topic of a new name. In a data folder it notes the name before it makes the topic, and the topic's id after it: the next
run deletes that one and no other. A topic that was made again under the same name has another id.
"""

import json
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from runtime.ids import IdSource

PREFIX: Final = "forebay-demo-flights"
NOTE: Final = "demo-topic.json"
_NAME: Final = re.compile(rf"{PREFIX}-[0-9a-z]{{26}}")


class OwnTopic(NamedTuple):
    """`id` is empty until the cluster has answered with it: the topic may or may not have been made."""

    name: str
    id: str


def new_name(ids: IdSource) -> str:
    """One that no topic has: 80 bits of it are chance."""
    return f"{PREFIX}-{ids.next_ulid().lower()}"


def is_demos_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def read_note(data: Path) -> OwnTopic | None:
    """What the last run in this folder noted; None for a note that no run has written."""
    try:
        match json.loads((data / NOTE).read_bytes()):
            case {"name": str(name), "id": str(topic_id)} if is_demos_name(name):
                return OwnTopic(name, topic_id)
    except (FileNotFoundError, ValueError):
        pass
    return None


def note(data: Path, topic: OwnTopic) -> None:
    """In the place of the note before it, at once or not at all."""
    fresh = data / f"{NOTE}.new"
    fresh.write_text(json.dumps(topic._asdict()))
    os.replace(fresh, data / NOTE)
