"""What this machine must offer before a broker opens anything: folders it can write, memory it may use, and files that settings name."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from process.cost.prices import prices_of
from process.exit_codes import whole_path
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.settings.model import Settings
from process.settings.notation import has_path, path_of, show_size
from storage.log.limits import DEFAULT_LIMITS

_CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

PROCESS_BYTES: Final = 192 * 2**20
"""Resident beside the budgets: the process with its libraries takes up to 145 MiB, the rest is what an allocator holds between pieces."""
CONNECTION_BYTES: Final = 64 * 2**10
EARLY_BYTES: Final = DEFAULT_LIMITS.early_waiting_bytes_max + DEFAULT_LIMITS.early_kept_bytes_max
"""Early objects that wait for the object store, and pages of others that were read."""


def check(settings: Settings) -> None:
    """Make the data folders. Raise `StartError`."""
    check_memory(settings, limit_bytes=memory_limit_bytes())
    prices_of(settings.cost, storage_url=settings.storage.url)
    if has_path(settings.storage.url):
        check_store_folder(path_of(settings.storage.url), key="storage.url", url=settings.storage.url)
    if has_path(settings.metadata.url):
        check_store_folder(path_of(settings.metadata.url).parent, key="metadata.url", url=settings.metadata.url)


def check_store_folder(folder: Path, *, key: str, url: str, is_made: bool = True) -> None:
    """The folder that the store of a setting writes to, as `check_folder` does."""
    check_folder(folder, named=f'{key} "{url}"', chosen=f"--set {key}=…", is_made=is_made)


def check_folder(folder: Path, *, named: str, chosen: str, is_made: bool = True) -> None:
    """Make it, write a file into it, remove the file. Unless `is_made`, a folder that is not there is judged by where it would be made.

    Raise `StartError`. `named`: what the operator wrote; `chosen`: how to choose another folder.
    """
    try:
        if is_made or os.path.lexists(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder if is_made else nearest_there(folder)):
            pass
    except OSError as error:
        raise StartError(
            f"{named}: cannot write to {whole_path(folder)} ({error.strerror}) as uid {os.geteuid()}. "
            f"Make it writable, or choose another with {chosen}",
            exit_code=EXIT_UNREACHABLE,
        ) from error


def nearest_there(path: Path) -> Path:
    """The path itself, or what is there of the way to it. Raise OSError if that cannot be seen."""
    for candidate in (absolute := path.absolute(), *absolute.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            candidate.stat()
            return candidate
    raise AssertionError("the root folder is there")


def memory_budgets(settings: Settings) -> dict[str, int]:
    """Bytes that a broker may hold of what clients send and read, by setting."""
    return {
        "storage.max_buffer_bytes": settings.storage.max_buffer_bytes,
        "storage.cache_bytes": settings.storage.cache_bytes,
        "groups.memory_bytes": settings.groups.memory_bytes,
    }


def memory_bytes_max(settings: Settings, *, connections: int | None = None) -> int:
    """The most that a broker takes with that many connections (docs/guides/size-and-cost.md, "Memory"); None: with all there may be."""
    open_max = settings.kafka.max_connections if connections is None else connections
    return sum(memory_budgets(settings).values()) + EARLY_BYTES + PROCESS_BYTES + open_max * CONNECTION_BYTES


def check_memory(settings: Settings, *, limit_bytes: int) -> None:
    """Bounds that together exceed what the process may have would end in a kill under load, with no word of why."""
    budgets = memory_budgets(settings)
    if sum(budgets.values()) < limit_bytes:
        return
    *named, last = [f"{key} ({show_size(size)})" for key, size in budgets.items()]
    raise StartError(
        f"{', '.join(named)} and {last} do not fit into the {limit_bytes >> 20}MiB this process may use. "
        "Lower them, e.g. --set storage.cache_bytes=64MiB, or give it more memory.",
        exit_code=EXIT_USAGE,
    )


def memory_limit_bytes(*, limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """The memory of the machine, or of the container if that is less."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            # Not this kind of manifest group, or none.
            continue
        if text.isdigit():
            known.append(int(text))
    return min(known)
