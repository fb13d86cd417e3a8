"""What clients were seen to use: results/CLIENT.json, written by a run that went well, committed, shown in docs/reference/apis.md."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.protocol import apis
from tests.compat.clients import Client

FOLDER: Final = Path(__file__).parent / "results"
_API_VERSIONS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`apis` is Kafka's name of an API → the versions used, ascending; `lacks` is step → reason."""

    client: str
    library: str
    version: str
    apis: Mapping[str, tuple[int, ...]]
    lacks: Mapping[str, str]


def result_of(client: Client, exercised: Iterable[tuple[int, int]]) -> Result:
    """The result of a run in which these (api key, version) went over the wire."""
    return Result(client=client.name, library=client.library, version=client.version, apis=apis_of(exercised), lacks=client.lacks)


def apis_of(exercised: Iterable[tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    """By name. A first ApiVersions above what is served is left out: its answer says so, and the client asks again."""
    found: dict[str, set[int]] = {}
    for key, version in sorted(exercised):
        api = apis.find(key)
        if key == _API_VERSIONS and not apis.is_served(key, version):
            continue
        found.setdefault(api.name if api else f"key {key}", set()).add(version)
    return {name: tuple(sorted(versions)) for name, versions in found.items()}


def steady(apis: Mapping[str, tuple[int, ...]], client: Client) -> dict[str, tuple[int, ...]]:
    """Without those that client.toml calls unsteady: used or not as time has it."""
    return {name: versions for name, versions in apis.items() if name not in client.unsteady}


def path_of(name: str, folder: Path = FOLDER) -> Path:
    return folder / f"{name}.json"


def write(result: Result, client: Client, folder: Path = FOLDER) -> None:
    """Replace the client's file. Unsteady APIs that an earlier run of the same version used stay in it."""
    apis = dict(result.apis)
    path = path_of(result.client, folder)
    if path.exists() and (earlier := read(path)).version == result.version:
        for name in client.unsteady & set(earlier.apis):
            apis[name] = tuple(sorted({*earlier.apis[name], *apis.get(name, ())}))
    shown = {
        "library": result.library,
        "version": result.version,
        "apis": dict(sorted(apis.items())),
        "lacks": dict(sorted(result.lacks.items())),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(shown, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Result:
    given = json.loads(path.read_text(encoding="utf-8"))
    return Result(
        client=path.stem,
        library=given["library"],
        version=given["version"],
        apis={name: tuple(versions) for name, versions in given["apis"].items()},
        lacks=given["lacks"],
    )


def committed(folder: Path = FOLDER) -> tuple[Result, ...]:
    """All that there are, by client."""
    return tuple(read(path) for path in sorted(folder.glob("*.json")))
