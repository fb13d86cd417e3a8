"""An S3 server of one's own: `with running_s3(folder) as s3: … s3.url() …`. Objects are files below `folder`; no fsync per PUT."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from services.build import VERSITYGW, built
from services.ports import HOST, free_port
from services.process import LocalProcess, Runs, Server, ServerError
from services.readiness import http_answers

ACCESS_KEY: Final = "forebay"
# Known to everybody: the server can be reached from this machine only.
SECRET_KEY: Final = "forebay-secret"
REGION: Final = "us-east-1"
BUCKET: Final = "forebay"
PREFIX: Final = "llog"
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
_PORT_TRIES: Final = 5
_ITS_VARIABLES: Final = ("VGW_", "ROOT_ACCESS_KEY", "ROOT_SECRET_", "LOGFILE", "WEBHOOK")


_LOGGED: Final = re.compile(r"\S+ \S+ \[[^]]*\] \S+ \S+ \S+ s3_(\w+) (\S+) (\S+) (\d{3}) (\S+) (.*)")
_RUN: Final = re.compile(r"\brun/(\S+)")


class LoggedRequest(NamedTuple):
    """A line of the access log. `run` is the token that the user agent has, and `key` and `error` are empty where there is none."""

    run: str
    operation: str
    key: str
    status: int
    error: str


def logged_requests(access_log: Path) -> list[LoggedRequest]:
    """The whole lines, in their order. A request for many objects, and a listing, name no key; a ranged GET has status 200."""
    found = []
    for line in access_log.read_text().splitlines():
        if match := _LOGGED.fullmatch(line):
            operation, key, _, status, error, rest = match.groups()
            run = _RUN.search(rest)
            found.append(LoggedRequest(run[1] if run else "", operation, key.strip("-"), int(status), error.strip("-")))
    return found


class S3Server(Server):
    """Path style, one bucket, one user."""

    def __init__(self, runs: Runs, *, host: str = HOST, port: int, bucket: str = BUCKET) -> None:
        super().__init__(runs)
        self.host = host
        self.port = port
        self.bucket = bucket
        self.access_key = ACCESS_KEY
        self.secret_key = SECRET_KEY
        self.region = REGION

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url(self, prefix: str = PREFIX) -> str:
        """As `storage.url` has it, without the credentials: those are `environ`."""
        return url_of(self.host, self.port, bucket=self.bucket, prefix=prefix)

    @property
    def environ(self) -> dict[str, str]:
        """The variables a client finds its credentials in."""
        return dict(CREDENTIALS)


def url_of(host: str, port: int, *, bucket: str = BUCKET, prefix: str = PREFIX) -> str:
    return f"s3://{bucket}/{prefix}?endpoint=http://{host}:{port}&region={REGION}&path_style=true"


def command(program: str, folder: Path, *, address: str, access_log: Path | None = None) -> list[str]:
    """Buckets are the folders in `folder`/data. Where files have no extended attributes, versitygw keeps them in `folder`/attributes."""
    sidecar = [] if _has_attributes(folder) else ["--sidecar", str(folder / "attributes")]
    logged = [] if access_log is None else ["--access-log", str(access_log)]
    return [program, *options(address), *logged, "posix", *sidecar, str(folder / "data")]


def options(address: str) -> list[str]:
    """The options that go before the kind of backend."""
    return ["--port", address, "--region", REGION, "--keep-alive", "--quiet"]


def environ(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours, but for what would configure versitygw, and its root user."""
    kept = {name: value for name, value in ours.items() if not name.startswith(_ITS_VARIABLES)}
    return kept | {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}


def prepare(folder: Path, bucket: str) -> None:
    """Make the bucket, which is a folder, and where attributes may go."""
    (folder / "data" / bucket).mkdir(parents=True, exist_ok=True)
    (folder / "attributes").mkdir(exist_ok=True)


@contextlib.contextmanager
def running_s3(folder: Path, *, port: int = 0, bucket: str = BUCKET, access_log: Path | None = None) -> Iterator[S3Server]:
    """A server with its data and `s3.log` in `folder` and an empty bucket unless there was one, ready; stopped at the end, its data left.

    Blocks. A line for each request is appended to `access_log`, which `logged_requests` reads. `port` 0 takes a free one. Raise
    `ServerError` or `services.build.BuildError`.
    """
    prepare(folder, bucket)
    server = _started(folder, port, bucket, access_log)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_s3_with_faults(
    s3: S3Server, folder: Path, *, latency_ms: float, faults: Mapping[str, float], refused: Path
) -> Iterator[S3Server]:
    """A proxy in front of `s3`, in a process of its own: the same bucket at another address, until the block ends.

    `faults`: a share of requests by the name of a fault (`python -m services.faults --help`). The ones that `s3` never sees are lines of
    `refused`, which `logged_requests` reads. Raise `ServerError`.
    """
    port = free_port()
    options = [f"--{name.replace('_', '-')}={share}" for name, share in faults.items()]
    process = LocalProcess(
        name="s3 proxy",
        command=[
            *(sys.executable, "-m", "services.faults", f"--to={s3.endpoint}", f"--port={port}"),
            *(f"--latency-ms={latency_ms}", f"--log={refused}", *options),
        ],
        environ={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).resolve().parents[1])},
        log=folder / "s3-proxy.log",
        answers=partial(http_answers, port),
    )
    process.start()
    server = S3Server(process, port=port, bucket=s3.bucket)
    try:
        yield server
    finally:
        server.stop()


def _started(folder: Path, port: int, bucket: str, access_log: Path | None) -> S3Server:
    program = str(built(VERSITYGW))
    for left in reversed(range(_PORT_TRIES)):
        chosen = port or free_port()
        process = LocalProcess(
            name="versitygw",
            command=command(program, folder, address=f"{HOST}:{chosen}", access_log=access_log),
            environ=environ(os.environ),
            log=folder / "s3.log",
            answers=partial(http_answers, chosen),
        )
        try:
            process.start()
        except ServerError as error:
            # Somebody else took the port between the look and the start.
            if port or not left or "address already in use" not in str(error):
                raise
            continue
        return S3Server(process, port=chosen, bucket=bucket)
    raise AssertionError("the last try raises")


def _has_attributes(folder: Path) -> bool:
    if sys.platform != "linux":
        return True
    probe = folder / "attributes"
    try:
        os.setxattr(probe, "user.forebay", b"1")
    except OSError:
        return False
    return True
