"""Where the demo's records go: a folder or memory of its own, or, for several brokers, the stores that the settings name."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.processes.workers import plan
from process.settings.errors import EXIT_USAGE, StartError
from process.settings.keys import SETTINGS
from process.settings.loading import CONFIG_VARIABLE, load
from process.settings.model import OF_A_SHARED_STORE

URLS: Final = ("metadata.url", "storage.url")
FLUSH_INTERVAL: Final = "storage.flush_interval"
OF_S3: Final = {FLUSH_INTERVAL: SETTINGS[FLUSH_INTERVAL].notation.show(OF_A_SHARED_STORE[FLUSH_INTERVAL])}
"""What the demo writes is priced as on S3, so it is written as often as there."""


@dataclass(frozen=True, slots=True)
class DemoStores:
    """`assignments` are the settings of every broker of the demo, those of the stores included. `data` None: not in a folder of the demo's.

    `is_own` False: others use these stores, too, so the topic is deleted in the end.
    """

    metadata_url: str
    storage_url: str
    assignments: tuple[str, ...]
    data: Path | None
    is_own: bool

    @property
    def flush_interval(self) -> str:
        return next(value for key, _, value in (one.partition("=") for one in reversed(self.assignments)) if key == FLUSH_INTERVAL)


def own(data: Path | None) -> DemoStores:
    """Embedded stores; None: in memory, for one broker."""
    storage_url = f"file://{_url_path(data)}/objects" if data else "memory://"
    metadata_url = f"sqlite:///{_url_path(data)}/meta.db" if data else "memory://"
    settings = {"storage.url": storage_url, "metadata.url": metadata_url, **OF_S3}
    return DemoStores(metadata_url, storage_url, tuple(f"{key}={value}" for key, value in settings.items()), data, is_own=True)


def choose_stores(data: Path | None, *, brokers: int, environ: Mapping[str, str]) -> DemoStores:
    """What the settings name, or embedded stores in `data` if they name none. Raise `StartError` if several brokers cannot share it."""
    file = environ.get(CONFIG_VARIABLE)
    loaded = load(file=Path(file) if file else None, environ=environ)
    interval = {} if FLUSH_INTERVAL in loaded.given else OF_S3
    if loaded.given.isdisjoint(URLS):
        if data is None:
            raise StartError(
                f"--brokers {brokers} needs stores that several processes can share, and memory is none. Leave --in-memory out, "
                "or use real ones: `make services && . .services/env`.",
                exit_code=EXIT_USAGE,
            )
        stores = own(data)
        overrides = {**{key: value for key, _, value in (one.partition("=") for one in stores.assignments) if key in URLS}, **interval}
        return DemoStores(stores.metadata_url, stores.storage_url, tuple(plan.assignments(loaded, overrides)), data, is_own=True)
    plan.check_shareable(loaded.settings, brokers=brokers, option="--brokers")
    urls = loaded.settings.metadata.url, loaded.settings.storage.url
    # Deleted, the topic stays away: an interrupted producer goes on asking for it as long as it lives, and asking makes topics.
    return DemoStores(*urls, tuple(plan.assignments(loaded, {"kafka.auto_create_topics": "false", **interval})), None, is_own=False)


def _url_path(path: Path) -> str:
    return os.fspath(path) if path.is_absolute() else f"./{path}"
