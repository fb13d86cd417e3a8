"""Prometheus and promtool, for tests of metrics, rules and dashboards: `with running_prometheus(folder, configuration) as prometheus: …`.

Both are taken from the PATH, if they are there, else from Debian's package, which is fetched once and unpacked into the cache: nothing is
installed, and no service starts.
"""

import contextlib
import http.client
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from services.build import BuildError, cache_folder
from services.lock import only_one
from services.ports import HOST, free_port, is_free
from services.process import LocalProcess, Runs, Server, ServerError
from services.readiness import ASK_WITHIN_S

FETCH_WITHIN_S: Final = 600.0
_PACKAGE: Final = "prometheus"
_PROGRAMS: Final = ("prometheus", "promtool")
_INSTALL: Final = "Install Prometheus 2.42 or newer with promtool (Debian: apt install --no-install-recommends prometheus)."
_LAST_LINES: Final = 5
_PORT_TRIES: Final = 5
_READY_WITHIN_S: Final = 90.0


class PrometheusServer(Server):
    """Its HTTP API is below `url`."""

    def __init__(self, runs: Runs, *, port: int) -> None:
        super().__init__(runs)
        self.port = port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def prometheus_program(name: str, *, cache: Path | None = None) -> Path:
    """The path of `prometheus` or `promtool`, fetched now if neither the PATH nor the cache has both. Raise `BuildError`."""
    assert name in _PROGRAMS, name
    installed = [shutil.which(program) for program in _PROGRAMS]
    if all(installed):
        return Path(str(installed[_PROGRAMS.index(name)]))
    target = (cache or cache_folder()) / "debian" / f"{_PACKAGE}-{_release()}-{platform.machine()}"
    if not target.exists():
        _fetch_once(target)
    return target / "usr" / "bin" / name


@contextlib.contextmanager
def running_prometheus(folder: Path, configuration: Path, *, port: int = 0) -> Iterator[PrometheusServer]:
    """A server with its data and `prometheus.log` in `folder`, ready; stopped at the end, its data left. Blocks.

    `configuration` names rule files relative to itself. `port` 0 takes a free one. Raise `ServerError` or `services.build.BuildError`.
    """
    if port and not is_free(port):
        raise ServerError(f"Port {port} on {HOST} is in use: Prometheus cannot start. Choose another.")
    program = str(prometheus_program("prometheus"))
    for left in reversed(range(_PORT_TRIES)):
        chosen = port or free_port()
        process = LocalProcess(
            name="Prometheus",
            command=[
                program,
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{chosen}",
                "--log.level=warn",
            ],
            environ=os.environ,
            log=folder / "prometheus.log",
            answers=partial(_is_ready, chosen),
            ready_within_s=_READY_WITHIN_S,
        )
        try:
            process.start()
        except ServerError as error:
            # Another process took the port between the look and the start.
            if port or not left or "address already in use" not in str(error):
                raise
            continue
        server = PrometheusServer(process, port=chosen)
        try:
            yield server
        finally:
            server.stop()
        return


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=ASK_WITHIN_S)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _release() -> str:
    """`debian-12`: packages of another release never pass for those of this one."""
    try:
        found = platform.freedesktop_os_release()
    except OSError:
        return sys.platform
    return f"{found['ID']}-{found.get('VERSION_ID', 'rolling')}"


def _fetch_once(target: Path) -> None:
    missing = [program for program in ("apt-get", "dpkg-deb") if shutil.which(program) is None]
    if missing:
        raise BuildError(f"There is no `prometheus` with `promtool` on the PATH, and no `{missing[0]}` to fetch Debian's. {_INSTALL}")
    try:
        with only_one(target.with_name(f".{target.name}.lock"), what="fetching Prometheus", within_s=FETCH_WITHIN_S):
            if not target.exists():
                _fetch(target)
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"Prometheus cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE.") from error


def _fetch(target: Path) -> None:
    """Download the package, which apt compares with Debian's signed list, and unpack it."""
    sys.stderr.write("fetching Debian's package of Prometheus (19 MB, once)\n")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        # Lists of its own: a fresh machine has none, and to renew the machine's takes its administrator.
        lists = Path(scratch) / "lists"
        (lists / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={lists}", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
        _run(["apt-get", "update", "-q", *own], Path(scratch))
        _run(["apt-get", "download", "-q", _PACKAGE, *own], Path(scratch))
        packages = list(Path(scratch).glob("*.deb"))
        unpacked = Path(scratch) / "unpacked"
        if len(packages) == 1:
            _run(["dpkg-deb", "--extract", str(packages[0]), str(unpacked)], Path(scratch))
        lacking = [name for name in _PROGRAMS if not (unpacked / "usr" / "bin" / name).exists()]
        if lacking:
            raise BuildError(f"Debian's package {_PACKAGE} has no `{lacking[0]}`. {_INSTALL}")
        unpacked.replace(target)
    sys.stderr.write(f"kept {target}\n")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"`{' '.join(command[:2])}` did not end within {FETCH_WITHIN_S:.0f} s.") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
        raise BuildError(f"Debian's package of Prometheus cannot be had. {_INSTALL} It was said:\n{said}")
