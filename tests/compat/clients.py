"""The clients there are: one folder each, described by its client.toml (README.md)."""

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.build import cache_folder
from tests.compat.scenario import STEPS

FOLDER: Final = Path(__file__).parent
TOOLCHAINS: Final = FOLDER.parent / "kit" / "toolchains"
_CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
_REQUIRED: Final = {"library": str, "version": str, "toolchain": str, "codecs": list, "in_make_test": bool}
_OPTIONAL: Final = {"unsteady": list, "provided": list, "lacks": dict}


class ClientError(Exception):
    """A client.toml that cannot be right. `str()` is one line that names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client.toml. `lacks` is step → reason; README.md has the other keys."""

    name: str
    folder: Path
    library: str
    version: str
    toolchain: str
    codecs: tuple[str, ...]
    in_make_test: bool
    unsteady: frozenset[str] = frozenset()
    provided: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """The command to which BOOTSTRAP and PREFIX are added. Installs or builds first, which may take minutes, once.

        Raise `services.build.BuildError` if that cannot be done.
        """
        toolchain = importlib.import_module(f"tests.kit.toolchains.{self.toolchain}")
        command: list[str] = toolchain.command(self.folder, cache_folder() / "compat")
        return command


def clients(folder: Path = FOLDER) -> tuple[Client, ...]:
    """All of them, by name. Raise `ClientError`."""
    return tuple(read(path) for path in sorted(folder.glob("*/client.toml")))


def read(path: Path) -> Client:
    """The client that this client.toml describes. Raise `ClientError`."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ClientError(f"{_short(path)} is not TOML: {error}") from error
    path = path.resolve()
    _check_keys(path, given)
    if not (TOOLCHAINS / f"{given['toolchain']}.py").exists():
        known = ", ".join(sorted(one.stem for one in TOOLCHAINS.glob("*.py")))
        raise ClientError(f"{_short(path)}: no toolchain {given['toolchain']}; there are {known}")
    _check_words(path, "codecs", given["codecs"], _CODECS)
    _check_words(path, "lacks", given.get("lacks", {}), STEPS)
    _check_words(path, "provided", given.get("provided", []), given.get("lacks", {}))
    return Client(
        name=path.parent.name,
        folder=path.parent,
        library=given["library"],
        version=given["version"],
        toolchain=given["toolchain"],
        codecs=tuple(given["codecs"]),
        in_make_test=given["in_make_test"],
        unsteady=frozenset(given.get("unsteady", [])),
        provided=tuple(given.get("provided", [])),
        lacks=given.get("lacks", {}),
    )


def _check_keys(path: Path, given: Mapping[str, object]) -> None:
    known = {**_REQUIRED, **_OPTIONAL}
    for key, value in given.items():
        if key not in known:
            raise ClientError(f"{_short(path)}: unknown key {key}; there are {', '.join(known)}")
        if not isinstance(value, known[key]):
            raise ClientError(f"{_short(path)}: {key} is a {type(value).__name__}, expected a {known[key].__name__}")
    for key in _REQUIRED:
        if key not in given:
            raise ClientError(f"{_short(path)}: {key} is missing")


def _check_words(path: Path, key: str, given: object, known: object) -> None:
    for word in given:  # type: ignore[attr-defined]
        if word not in known:  # type: ignore[operator]
            raise ClientError(f"{_short(path)}: {key} names {word}; there are {', '.join(known)}")  # type: ignore[arg-type]


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
