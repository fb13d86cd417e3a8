"""Brokers on a real Oxia and a real S3 server of the test's own, each behind a proxy that the test may let fail."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.faults.s3_proxy import S3Proxy, s3_proxy
from services.oxia import OxiaServer, running_oxia
from services.versitygw import S3Server, running_s3
from tests.kit.faults.in_thread import Run, in_thread
from tests.kit.faults.oxia_proxy import OxiaProxy, oxia_proxy
from tests.kit.serving import Served, serving


@dataclass(frozen=True)
class Native:
    """Two servers and their proxies. `run_oxia` and `run_s3` run a coroutine of the proxy on its own loop."""

    folder: Path
    oxia: OxiaServer
    s3: S3Server
    oxia_proxy: OxiaProxy
    s3_proxy: S3Proxy
    run_oxia: Run
    run_s3: Run

    @property
    def settings(self) -> dict[str, str]:
        """For a broker behind the proxies."""
        return {
            "metadata.url": f"oxia://{self.oxia_proxy.address}/default",
            "storage.url": f"s3://{self.s3.bucket}/llog?endpoint={self.s3_proxy.endpoint}&region={self.s3.region}&path_style=true",
        }

    @contextlib.contextmanager
    def broker(self, *, kafka_port: int | None = None, settings: Mapping[str, str] | None = None, afresh: bool = False) -> Iterator[Served]:
        """A broker that is ready, as a process; `afresh` as of `serving`."""
        given = self.settings | dict(settings or {})
        with serving(self.folder, kafka_port=kafka_port, settings=given, environ=self.s3.environ, afresh=afresh) as served:
            yield served


@contextlib.contextmanager
def native_services(folder: Path) -> Iterator[Native]:
    with (
        running_oxia(folder / "oxia") as oxia,
        running_s3(folder / "s3") as s3,
        in_thread(oxia_proxy(oxia.address)) as (to_oxia, run_oxia),
        in_thread(s3_proxy(s3.endpoint)) as (to_s3, run_s3),
    ):
        yield Native(folder, oxia, s3, to_oxia, to_s3, run_oxia, run_s3)
