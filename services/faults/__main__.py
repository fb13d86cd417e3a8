"""An S3 server that is further away and refuses now and then: a proxy in a process of its own.

    python -m services.faults --to http://127.0.0.1:7070 --port 7071 --latency-ms 20 --slow-down 0.01 --log refused.log

The requests that it answers itself, and the server never sees, are lines of `--log`, in the form of the server's access log. A share of
0.01 is each hundredth request; each is struck by one fault at most.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import uvloop

from runtime.supervision import Nursery
from services.faults.http1 import Head
from services.faults.plan import Fault, Rule
from services.faults.s3_proxy import S3Proxy

SLOW_DOWN: Final = "slow_down"
INTERNAL_ERROR: Final = "internal_error"
LOST_REPLY: Final = "lost_reply"
FAULTS: Final = (SLOW_DOWN, INTERNAL_ERROR, LOST_REPLY)
_STRUCK: Final = {
    SLOW_DOWN: Rule(Fault.ANSWER, status=503, code="SlowDown"),
    INTERNAL_ERROR: Rule(Fault.ANSWER, status=500, code="InternalError"),
    LOST_REPLY: Rule(Fault.DROP_REPLY),
}
_OF_QUERIES: Final = {
    ("GET", "list-type"): "ListObjectsV2",
    ("GET", "uploads"): "ListMultipartUploads",
    ("PUT", "partNumber"): "UploadPart",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("POST", "delete"): "DeleteObjects",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
}
_OF_OBJECTS: Final = {"GET": "GetObject", "PUT": "PutObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
_OF_BUCKETS: Final = {"HEAD": "HeadBucket", "GET": "ListObjects"}
_OF_SERVER: Final = "ListAllMyBuckets"


def rules(shares: Mapping[str, float], *, latency_ms: float) -> Iterator[Rule]:
    """Rules for shares of `FAULTS`, and for the rest of the requests."""
    for place, name in enumerate(name for name in FAULTS if shares.get(name)):
        struck = _STRUCK[name]
        # Equal shares would fall on the same requests if they began to count with the same one.
        yield Rule(struck.fault, status=struck.status, code=struck.code, every=1 / shares[name], after=place)
    if latency_ms:
        yield Rule(Fault.DELAY_REPLY, delay_s=latency_ms / 1_000)


def logged_line(head: Head, rule: Rule, now: datetime) -> str:
    """Return a request as the access log of versitygw would have it."""
    asked = urlsplit(head.target)
    query = parse_qs(asked.query, keep_blank_values=True)
    _, _, key = unquote(asked.path).lstrip("/").partition("/")
    operation = next((name for (method, word), name in _OF_QUERIES.items() if head.method == method and word in query), "")
    named = _OF_OBJECTS if key else _OF_BUCKETS if asked.path.strip("/") else {"GET": _OF_SERVER}
    operation = operation or named.get(head.method, head.method)
    stamp = now.strftime("%d/%b/%Y:%H:%M:%S %z")
    agent = head.headers.get("user-agent", "-")
    shown_key = key.replace(" ", "+") or "-"
    return f'- - [{stamp}] 127.0.0.1 - - s3_{operation} {shown_key} "{head.method}" {rule.status} {rule.code} 0 {agent}\n'


async def _serve(server: str, port: int, standing: Sequence[Rule], log: Path) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    with log.open("a", buffering=1) as lines:

        def refused(head: Head, rule: Rule) -> None:
            lines.write(logged_line(head, rule, datetime.now(UTC)))

        async with Nursery() as nursery:
            proxy = S3Proxy(server, port, nursery, refused=refused)
            proxy.plan.add(*standing)
            await proxy.up()
            await stopped.wait()
            await proxy.down()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, metavar="URL", help="the server")
    parser.add_argument("--port", required=True, type=int, help="of the proxy, on this machine")
    parser.add_argument("--latency-ms", type=float, default=0, help="how late answers are")
    parser.add_argument("--log", required=True, type=Path, metavar="FILE", help="requests that the server never sees")
    for name in FAULTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=0, metavar="SHARE", help=f"share of {name}")
    given = parser.parse_args(arguments)
    standing = list(rules({name: getattr(given, name) for name in FAULTS}, latency_ms=given.latency_ms))
    uvloop.run(_serve(given.to, given.port, standing, given.log))


if __name__ == "__main__":
    main(sys.argv[1:])
