"""docs/reference/http.md is true: its commands are run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from tests.kit.http_asking import Http

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "http.md"


def commands(heading: str) -> list[list[str]]:
    """The words of each command in the transcripts below a heading."""
    (section,) = [part for part in re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE) if part.startswith(f"{heading}\n")]
    return [shlex.split(block.removeprefix("$ ")) for block in re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)]


async def run(http: Http, words: list[str]) -> Any:
    """What `curl` would print."""
    assert words[0] == "curl"
    url = next(word for word in words if word.startswith("localhost:8070/")).removeprefix("localhost:8070")
    data = words[words.index("-d") + 1] if "-d" in words else None
    kind = words[words.index("-H") + 1].partition(": ")[2] if "-H" in words else ""
    status, answer = await (http.get(url) if data is None else http.post(url, data.encode(), content_type=kind))
    assert status == 200, answer
    return answer


async def test_what_the_page_writes_is_what_it_reads(http: Http) -> None:
    (write,) = commands("Write")
    (read,) = commands("Read")

    (result,) = (await run(http, write))["results"]
    assert [result[name] for name in ("start_offset", "end_offset", "count", "duplicate", "next_sequence")] == [0, 2, 3, False, None]
    (found,) = (await run(http, read))["results"]
    assert found["next_fetch_offset"] == 3
    assert {"offset", "timestamp", "key", "value", "headers"} == set(found["records"][0])


def test_the_page_names_every_path_and_every_status() -> None:
    from broker.http.routes import ROUTES, openapi

    text = PAGE.read_text()
    for route in ROUTES:
        assert re.sub(r"\{\w+\}", "NAME", route.path) in text, route.path
    statuses = set(re.findall(r'"(\d{3})"', json.dumps(openapi(ROUTES))))
    assert [status for status in sorted(statuses) if status not in text] == []
