"""`python -m services start|stop|clean|status|build`: Oxia and S3 in the background, behind `make services`."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from services.background import BackgroundServer, exports, oxia_launch, s3_launch
from services.build import PROGRAMS, BuildError, built
from services.lock import only_one
from services.process import ServerError

_ROOT: Final = Path(__file__).resolve().parent.parent
_OXIA_PORT: Final = 6648
_S3_PORT: Final = 8333
_WAIT_S: Final = 120.0
_EXIT_FAILED: Final = 1


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    try:
        if given.action == "build":
            return build(given)
        with only_one(given.folder / "lock", what="python -m services", within_s=_WAIT_S):
            action: Callable[[argparse.Namespace], int] = _ACTIONS[given.action]
            return action(given)
    except (ServerError, BuildError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_FAILED


def build(_given: argparse.Namespace) -> int:
    for program in PROGRAMS:
        _say(str(built(program)))
    return 0


def start(given: argparse.Namespace) -> int:
    oxia, s3 = _servers(given.folder)
    launches = (
        (oxia, oxia_launch(oxia.folder, port=given.oxia_port)),
        (s3, s3_launch(s3.folder, port=given.s3_port)),
    )
    for server, launch in launches:
        how = "started" if server.start(launch) else "was already running"
        _say(f"{server.name} {how}: port {launch.port}, pid {server.pid()}, log {_short(server.log)}")
    env = given.folder / "env"
    env.write_text(exports(oxia_port=given.oxia_port, s3_port=given.s3_port))
    _say(f"Next:\n  . {_short(env)}\n  .venv/bin/forebay serve")
    return 0


def stop(given: argparse.Namespace) -> int:
    for server in _servers(given.folder):
        _say(f"{server.name} {'stopped' if server.stop() else 'was not running'}; data stays in {_short(server.folder)}")
    return 0


def clean(given: argparse.Namespace) -> int:
    """Stop both and forget what they kept. What else is in the folder stays."""
    for server in _servers(given.folder):
        server.stop()
        if server.folder.exists():
            shutil.rmtree(server.folder)
    (given.folder / "env").unlink(missing_ok=True)
    _say(f"stopped; no data left in {_short(given.folder)}")
    return 0


def status(given: argparse.Namespace) -> int:
    """Exit code 0 when both run."""
    pids = [server.pid() for server in _servers(given.folder)]
    for server, pid in zip(_servers(given.folder), pids, strict=True):
        _say(f"{server.name} {f'runs, pid {pid}' if pid else 'does not run'}")
    return 0 if all(pids) else _EXIT_FAILED


_ACTIONS: Final = {"start": start, "stop": stop, "clean": clean, "status": status}


def _servers(folder: Path) -> tuple[BackgroundServer, BackgroundServer]:
    return BackgroundServer(name="Oxia", folder=folder / "oxia"), BackgroundServer(name="S3 (versitygw)", folder=folder / "s3")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services", description="Oxia and S3 in the background. See services/README.md.")
    parser.add_argument("action", choices=[*_ACTIONS, "build"])
    for option, variable, default, kind in (
        ("--oxia-port", "FOREBAY_SERVICES_OXIA_PORT", _OXIA_PORT, int),
        ("--s3-port", "FOREBAY_SERVICES_S3_PORT", _S3_PORT, int),
        ("--folder", "FOREBAY_SERVICES_FOLDER", _ROOT / ".services", _absolute),
    ):
        # A default that is text is converted, and refused, as the option itself would be.
        parser.add_argument(option, type=kind, default=os.environ.get(variable, str(default)), help=f"default {default}, or {variable}")
    return parser.parse_args(arguments)


def _absolute(text: str) -> Path:
    return Path(text).absolute()


def _short(path: Path) -> str:
    """As seen from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
