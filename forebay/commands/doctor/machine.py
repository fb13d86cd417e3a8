"""What this machine offers a broker: versions, open files, memory, disks. Pure, but for the measuring."""

import errno
import os
import platform
from pathlib import Path
from typing import Final

from broker.audit import refusal
from forebay.commands.doctor.finding import Finding, failed, ok, warning
from process import preflight
from process.descriptors import DescriptorLimits
from process.disk_space import FileSystem, measure_folders
from process.settings.errors import StartError
from process.settings.model import Settings
from process.settings.notation import show_size
from runtime.version import forebay_version
from storage.objects.block_folder import BlockFolder

OPEN_FILES: Final = "open files"
MEMORY: Final = "memory"
DISK: Final = "disk"
AUDIT_LOG: Final = "audit log"
CACHE_DIR: Final = "shared cache"


def versions() -> Finding:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return ok("versions", f"forebay {forebay_version()}, Python {platform.python_version()}, {system}")


def of_open_files(room: DescriptorLimits) -> Finding:
    known = f"this process may open {room.limit} files, {room.reserved} of them are held in reserve"
    if room.connections < room.wanted:
        return warning(OPEN_FILES, f"{known}: {room.effect}. Fix: {room.fix}.")
    return ok(OPEN_FILES, f"{known}: room for {room.wanted} connections (kafka.max_connections)")


def of_memory(settings: Settings, *, limit_bytes: int) -> Finding:
    """Raise `StartError` where `serve` does."""
    preflight.check_memory(settings, limit_bytes=limit_bytes)
    bytes_max = preflight.memory_bytes_max(settings)
    *named, last = preflight.memory_budgets(settings)
    known = (
        f"a broker takes up to {bytes_max >> 20} MiB, {sum(preflight.memory_budgets(settings).values()) >> 20} of them by "
        f"{', '.join(named)} and {last}, and this process may use {limit_bytes >> 20} MiB"
    )
    if bytes_max > limit_bytes:
        return warning(MEMORY, f"{known}: it may be killed under load. Lower them, e.g. --set storage.cache_bytes=64MiB.")
    return ok(MEMORY, known)


def of_audit_log(path: str) -> Finding:
    """Blocks. Makes no file."""
    try:
        if os.path.exists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
        elif not os.path.isdir(folder := os.path.dirname(os.path.abspath(path))):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        elif not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    except OSError as error:
        return failed(AUDIT_LOG, refusal(path, error))
    return ok(AUDIT_LOG, f"{path} can be written to")


def of_cache_dir(folder: str, *, bytes_max: int) -> Finding:
    """Blocks. Makes no folder. A broker starts without it, too: what is wrong is a warning."""
    path = Path(folder).absolute()
    without = "without it every process reads from the object store"
    try:
        preflight.check_folder(path, named=f'storage.cache_dir "{folder}"', chosen="--set storage.cache_dir=…", is_made=False)
        space = measure_folders([preflight.nearest_there(path)])[0].space
    except (StartError, OSError, IndexError) as error:
        return warning(CACHE_DIR, f"{error}: {without}")
    known = f"{path} {'can be written to' if path.is_dir() else 'is not there yet and would be made'}"
    totals = BlockFolder(folder, bytes_max=bytes_max, owner="doctor", now_s=float).totals()
    held_bytes = 0 if totals is None else totals.size_bytes
    room = f"{held_bytes >> 20} MiB are in it, and {space.free_bytes >> 20} MiB of its disk are free"
    if held_bytes + space.free_bytes < bytes_max:
        return warning(
            CACHE_DIR,
            f"{known}; {room}: less than storage.cache_dir_bytes ({show_size(bytes_max)}): its disk would be full first, for all that is "
            "on it. Lower it, or choose another folder.",
        )
    return ok(CACHE_DIR, f"{known}; {room}")


def of_disk(found: FileSystem) -> Finding:
    space = found.space
    known = f"{', '.join(map(str, found.folders))}: {space.free_bytes >> 20} MiB of {space.total_bytes >> 20} MiB free"
    if space.free_bytes < space.low_bytes:
        full = "when it is full, Produce and commits of offsets are answered with errors that clients retry"
        return warning(DISK, f"{known}, less than {space.low_bytes >> 20} MiB: {full}. Free some space, or move the data to a larger disk.")
    return ok(DISK, known)
