"""Where and with what a run was made, for the head of its results."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

import confluent_kafka

_ROOT: Final = Path(__file__).resolve().parent.parent
_DISTRIBUTIONS: Final = ("uvloop", "msgspec", "crc32c", "prometheus-client", "kio")


def describe() -> dict[str, Any]:
    return {
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "has_local_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "load_average_1m": os.getloadavg()[0],
        "libraries": {
            **{name: importlib.metadata.version(name) for name in _DISTRIBUTIONS},
            "confluent-kafka": confluent_kafka.version(),
            "librdkafka": confluent_kafka.libversion()[0],
        },
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        ended = subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()
