"""A worker that does as it is told, under a supervisor; run as a program, with its number and what it shall do.

Each life leaves a file `<number>.<life>.pid` in the working directory.
"""

import os
import signal
import sys
from pathlib import Path


def note_life(number: str) -> int:
    life = len(list(Path().glob(f"{number}.*.pid")))
    partial = Path(f"{number}.{life}.partial")
    partial.write_text(str(os.getpid()))
    partial.rename(f"{number}.{life}.pid")
    return life


def tell(message: str) -> None:
    os.write(0, message.encode() + b"\n")


def main(number: str, act: str) -> None:
    life = note_life(number)
    match act:
        case "refuse":
            tell('{"refused": "the folder is on fire"}')
            sys.exit(3)
        case "crash at first":
            sys.exit(7)
        case "refuse later" if life:
            tell('{"refused": "the folder is on fire"}')
            sys.exit(3)
        case "drain badly":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        case "never drain":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "start for ever":
            print("begun", flush=True)
            signal.pause()
        case _:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"hello from {number}", flush=True)
    tell(f'{{"ready": {{"life": {life}}}}}')
    while os.read(0, 1):
        pass
    print("the supervisor is gone", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
