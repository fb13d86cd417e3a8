"""`python -m tests.compat [CLIENT …] [--against forebay|roles|kafka] [--no-write] [--page]`: real clients against a real broker.

Prints a line for each client and each difference. A client that played against Forebay as it was to gets its results/CLIENT.json
written, and docs/reference/apis.md is renewed. Exit code 1 when anything differed.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from runtime.clock import SystemClock
from services.build import BuildError
from services.process import ServerError
from tests.compat import results, support_table
from tests.compat.clients import Client, ClientError, clients
from tests.compat.running import Play, play

_EXIT_DIFFERENT: Final = 1
_EXIT_WRONG_USE: Final = 2

_clock = SystemClock()


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    if given.page:
        _renew_page()
        return 0
    try:
        chosen = _chosen(given.clients)
    except ClientError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_WRONG_USE
    outcomes = [_played(client, given) for client in chosen]
    if given.against == "forebay" and not given.no_write:
        _renew_page()
    print(f"{sum(outcomes)} of {len(outcomes)} clients played as expected against {given.against}")
    return 0 if all(outcomes) else _EXIT_DIFFERENT


def _played(client: Client, given: argparse.Namespace) -> bool:
    """Whether nothing differed."""
    started_s = _clock.monotonic_s()
    try:
        played = play(client, given.against)
    except (BuildError, ServerError) as error:
        print(f"{client.name:24} not played: {error}", flush=True)
        return False
    print(f"{client.name:24} {_outcome(client, played)}, {_clock.monotonic_s() - started_s:.0f} s", flush=True)
    for difference in played.differences:
        print(f"    {difference}", flush=True)
    if played.differences and played.stderr:
        print("    its standard error ended:", *played.stderr.splitlines(), sep="\n        ", flush=True)
    if not played.differences and given.against == "forebay" and not given.no_write:
        results.write(results.result_of(client, played.exercised), client)
    return not played.differences


def _outcome(client: Client, played: Play) -> str:
    if played.differences:
        return f"{len(played.differences)} differences"
    return f"as expected: {len(played.said)} steps, {len(client.lacks)} lacking, {len(results.apis_of(played.exercised))} APIs"


def _chosen(names: Sequence[str]) -> list[Client]:
    there = {client.name: client for client in clients()}
    for name in names:
        if name not in there:
            raise ClientError(f"no client {name}; there are {', '.join(there)}")
    return [there[name] for name in names] or list(there.values())


def _renew_page() -> None:
    support_table.PAGE.write_text(support_table.rendered(results.committed()), encoding="utf-8")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.compat", description="Real Kafka clients play one scenario against a real broker."
    )
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="folders below tests/compat (default: all)")
    parser.add_argument("--against", choices=("forebay", "roles", "kafka"), default="forebay")
    parser.add_argument("--no-write", action="store_true", help="leave results/ and docs/reference/apis.md as they are")
    parser.add_argument("--page", action="store_true", help="only renew docs/reference/apis.md from results/")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
