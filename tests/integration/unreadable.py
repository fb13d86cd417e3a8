"""A program without the rights of root that runs commands in folders it may not read, and prints their exit codes and words as JSON."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from forebay.cli import application

FREE_PORTS: Final = ("--set", "kafka.listeners=PLAINTEXT://127.0.0.1:0", "--set", "http.listen=127.0.0.1:0")
COMMANDS: Final = {
    "config show": (),
    "doctor": (),
    "serve": ("--log-format", "json", *FREE_PORTS),
    "compactor serve": (),
    "compactor run-once": (),
    "compactor status": (),
    "storage summary": (),
    "storage gc": (),
    "debug trace-offset": ("orders", "0", "0"),
    "cluster upgrade": (),
}
DEMO: Final = {"demo": ("--exit", "--records", "1")}
OF_STORES: Final = {name: given for name, given in COMMANDS.items() if name != "config show"} | DEMO


def shut_folder(folder: Path) -> None:
    folder.chmod(0)


def shut_settings(folder: Path) -> None:
    (folder / "forebay.yaml").write_text("log: {level: error}\n")
    (folder / "forebay.yaml").chmod(0)


def settings_that_lead_nowhere(folder: Path) -> None:
    (folder / "forebay.yaml").symlink_to("forebay.yaml")


def gone(folder: Path) -> None:
    folder.rmdir()


def shut_data(folder: Path) -> None:
    (folder / "forebay-data").mkdir()
    (folder / "forebay-data").chmod(0)


def read_only_data(folder: Path) -> None:
    (folder / "forebay-data" / "objects").mkdir(parents=True)
    (folder / "forebay-data" / "meta.db").write_bytes(b"")
    (folder / "forebay-data").chmod(0o500)


SITUATIONS: Final[dict[Callable[[Path], None], dict[str, tuple[str, ...]]]] = {
    shut_folder: COMMANDS | DEMO,
    shut_settings: COMMANDS,
    settings_that_lead_nowhere: COMMANDS,
    gone: COMMANDS | DEMO,
    shut_data: OF_STORES,
    read_only_data: OF_STORES,
}


def main(below: Path) -> None:
    found = []
    for situation, commands in SITUATIONS.items():
        folder = below / situation.__name__
        folder.mkdir()
        os.chdir(folder)
        situation(folder)
        for name, given in commands.items():
            ended = CliRunner().invoke(application, [*name.split(), *given])
            is_bug = ended.exception is not None and not isinstance(ended.exception, SystemExit)
            said = f"{ended.output}{ended.exception!r}" if is_bug else ended.output
            found.append({"situation": situation.__name__, "command": name, "code": ended.exit_code, "said": said, "is_bug": is_bug})
        with contextlib.suppress(FileNotFoundError):
            for path in (folder, folder / "forebay-data"):
                path.chmod(0o700)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
