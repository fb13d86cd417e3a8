"""What this machine offers a broker: versions, open files, memory, disks. Pure, but for the measuring."""

import errno
import os
import platform
from typing import Final

from broker.audit import refusal
from forebay.commands.doctor.finding import Finding, failed, ok, warning
from process import preflight
from process.descriptors import DescriptorLimits
from process.disk_space import FileSystem
from process.settings.model import Settings
from runtime.version import forebay_version

OPEN_FILES: Final = "open files"
MEMORY: Final = "memory"
DISK: Final = "disk"
AUDIT_LOG: Final = "audit log"


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


def of_disk(found: FileSystem) -> Finding:
    space = found.space
    known = f"{', '.join(map(str, found.folders))}: {space.free_bytes >> 20} MiB of {space.total_bytes >> 20} MiB free"
    if space.free_bytes < space.low_bytes:
        full = "when it is full, Produce and commits of offsets are answered with errors that clients retry"
        return warning(DISK, f"{known}, less than {space.low_bytes >> 20} MiB: {full}. Free some space, or move the data to a larger disk.")
    return ok(DISK, known)
