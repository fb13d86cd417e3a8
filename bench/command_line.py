"""`forebay topic produce` and `topic consume` beside kcat: seconds from the call to the end, interpreter and all.

    python -m bench.command_line localhost:9092 --records 1000000 --size 100

The broker has to be there; the topic is made and deleted. kcat is taken from the PATH, or left out if there is none. Prints a line per run
and, in the last, JSON with the least of each in seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runtime.clock import SystemClock

TOPIC = "bench-command-line"
_clock = SystemClock()


def commands(bootstrap: str, lines: Path) -> Mapping[str, Sequence[str]]:
    forebay = [sys.executable, "-m", "forebay", "topic"]
    kcat = shutil.which("kcat")
    found = {
        "produce": [*forebay, "produce", TOPIC, "-q", "--file", str(lines), "-b", bootstrap],
        "produce with keys": [*forebay, "produce", TOPIC, "-q", "-K", " ", "--file", str(lines), "-b", bootstrap],
        "consume": [*forebay, "consume", TOPIC, "-q", "--until", "end", "-b", bootstrap],
        "consume with a format": [*forebay, "consume", TOPIC, "-q", "--until", "end", "-f", r"%t [%p] %o: %k %v\n", "-b", bootstrap],
    }
    if kcat is not None:
        found["kcat produce"] = [kcat, "-b", bootstrap, "-P", "-t", TOPIC, "-X", "enable.idempotence=true", "-l", str(lines)]
        found["kcat consume"] = [kcat, "-b", bootstrap, "-C", "-t", TOPIC, "-e", "-q"]
    return found


def seconds(command: Sequence[str]) -> float:
    began_s = _clock.monotonic_s()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=nowhere)
    return _clock.monotonic_s() - began_s


def topic(bootstrap: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "forebay", "topic", *arguments, "-q", "-b", bootstrap], check=True)


def measured(bootstrap: str, lines: Path, repeats: int, said: Callable[[str], object]) -> dict[str, float]:
    """The least of the repeats; each produces into a new topic, which each then consumes."""
    least: dict[str, float] = {}
    for name, command in commands(bootstrap, lines).items():
        for _ in range(repeats):
            topic(bootstrap, "create", TOPIC)
            try:
                if "consume" in name:
                    topic(bootstrap, "produce", TOPIC, "--file", str(lines))
                took_s = seconds(command)
            finally:
                topic(bootstrap, "delete", TOPIC, "--yes")
            said(f"{name}: {took_s:.2f} s")
            least[name] = round(min(took_s, least.get(name, took_s)), 2)
    return least


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("bootstrap")
    arguments.add_argument("--records", type=int, default=1_000_000)
    arguments.add_argument("--size", type=int, default=100, help="bytes of a line")
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{number:09d} ".ljust(given.size, "x") + "\n" for number in range(given.records))
        file.flush()
        print(json.dumps(measured(given.bootstrap, Path(file.name), given.repeats, lambda line: print(line, file=sys.stderr))))


if __name__ == "__main__":
    main()
