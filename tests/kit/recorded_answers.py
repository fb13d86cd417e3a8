"""What Apache Kafka answered, kept in a file, so that Forebay can be compared without it: answers that versions share are there once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

KAFKA_VERSION: Final = "4.3.1"
ANSWERS: Final = Path(__file__).parents[1] / "compat" / "second_opinion" / f"kafka-{KAFKA_VERSION}.json"


def written(answers: Mapping[str, Any]) -> str:
    """As JSON, a line for every title and answer: `[API, title, versions, answer]`."""
    shared: dict[tuple[str, str, str], list[int]] = {}
    for probe, answer in answers.items():
        named, _, title = probe.partition(": ")
        api, _, version = named.partition(" ")
        shared.setdefault((api, title, json.dumps(answer, sort_keys=True)), []).append(int(version))
    lines = (json.dumps([api, title, versions]).removesuffix("]") + f", {answer}]" for (api, title, answer), versions in shared.items())
    return "[\n" + ",\n".join(lines) + "\n]\n"


def read(text: str) -> dict[str, Any]:
    return {f"{api} {version}: {title}": answer for api, title, versions, answer in json.loads(text) for version in versions}
