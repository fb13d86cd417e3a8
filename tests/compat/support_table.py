"""docs/reference/apis.md: what broker/protocol/apis.py serves, and which clients were seen to use it.

`python -m tests.compat --page` renews it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from broker.protocol.apis import APIS, Api
from tests.compat.results import Result

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "apis.md"

_BEFORE: Final = """\
# Kafka APIs that Forebay serves

Generated from `broker/protocol/apis.py` and `tests/compat/results/` by `python -m tests.compat --page`; a test keeps them equal.
ApiVersions answers with the versions advertised. A request of a version that is advertised but not served closes the connection.
"""

_USED: Final = """\
## What clients used

Versions that each client sent while it played the steps of [tests/compat](../../tests/compat/README.md), as seen by a proxy between it and
the broker.
"""

_CLIENTS: Final = """\
## The clients

Each played every step that its library has calls for, and saw what it was to see. Why it lacks a step is said in the `client.toml` of its
folder in `tests/compat`.
"""


def rendered(results: Sequence[Result]) -> str:
    """The whole page."""
    parts = [_BEFORE, _served(APIS)]
    if results:
        parts += [_USED, _used(APIS, results), _CLIENTS, _clients(results)]
    return "\n".join(parts)


def _served(apis: Sequence[Api]) -> str:
    rows = [(api.name, str(api.key), _span(api.minimum, api.maximum), _span(api.served_minimum, api.maximum)) for api in apis]
    return _table(("API", "key", "versions advertised", "versions served"), rows, right=(1,))


def _used(apis: Sequence[Api], results: Sequence[Result]) -> str:
    rows = [(api.name, *(_versions(result.apis.get(api.name, ())) for result in results)) for api in apis]
    return _table(("API", *(result.client for result in results)), rows)


def _clients(results: Sequence[Result]) -> str:
    rows = [
        (result.client, result.library, result.version, ", ".join(f"`{step}`" for step in result.lacks) or "none") for result in results
    ]
    return _table(("client", "library", "version", "steps it lacks"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def _versions(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
