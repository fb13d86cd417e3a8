"""Where the brokers of a case keep what they keep: folders of this machine, memory, or a real Oxia and a real S3 server beside them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.oxia import running_oxia
from services.versitygw import running_s3

MEMORY: Final = "memory"
DISK: Final = "disk+sqlite"
NATIVE: Final = "s3+oxia"
STORES: Final = (MEMORY, DISK, NATIVE)
KAFKA: Final = "kafka"
"""No store of a broker of ours, but Apache Kafka in its place: only where it is asked for by name."""

OXIA_SHARDS: Final = 4


@dataclass(frozen=True, slots=True)
class Place:
    """The stores of one case. `servers`: pids by name."""

    store: str
    storage_url: str
    metadata_url: str
    servers: Mapping[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        return {"storage.url": self.storage_url, "metadata.url": self.metadata_url}


@contextlib.contextmanager
def fresh(store: str, folder: Path) -> Iterator[Place]:
    """Empty stores in a folder of their own below `folder`. Credentials are in the environment meanwhile, for brokers and for peers."""
    if store == MEMORY:
        yield Place(store, "memory://", "memory://")
        return
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=folder) as made:
        root = Path(made).resolve()
        if store == DISK:
            yield Place(store, f"file://{root}/objects", f"sqlite:///{root}/meta.db")
        else:
            with _native(root) as place:
                yield place


@contextlib.contextmanager
def _native(root: Path) -> Iterator[Place]:
    with running_oxia(root / "oxia", shards=OXIA_SHARDS) as oxia, running_s3(root / "s3") as s3, _environment(s3.environ):
        yield Place(NATIVE, s3.url(), oxia.url, {"oxia": oxia.pid, "s3": s3.pid})


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
