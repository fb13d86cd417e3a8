"""`forebay serve --workers` with workers that do as they are told; run as a program: what each shall do, then assignments after `--`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay.processes.supervisor import serve_workers
from process.settings.loading import load

WORKER = Path(__file__).with_name("fake_worker.py")


def main(acts: Sequence[str], assignments: Sequence[str]) -> int:
    loaded = load(environ={}, assignments=assignments)
    first = loaded.settings.kafka.listeners[0].port

    def command(of_worker: Sequence[str]) -> list[str]:
        number = load(environ={}, assignments=of_worker).settings.kafka.listeners[0].port - first
        return [sys.executable, str(WORKER), str(number), acts[number]]

    return serve_workers(loaded, workers=len(acts), command=command, environ=os.environ)


if __name__ == "__main__":
    middle = sys.argv.index("--")
    sys.exit(main(sys.argv[1:middle], sys.argv[middle + 1 :]))
