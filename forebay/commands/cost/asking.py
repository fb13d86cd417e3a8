"""The bills of running processes, asked for over HTTP: those that registered an address, and those that are named."""

import http.client
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec

from forebay.commands.debug.opening import open_for_reading
from process.settings.model import Settings
from process.settings.notation import HttpAddress, is_memory, parse_address
from storage.catalog.brokers import HTTP_LISTENER, decode_broker, live_compactors
from storage.metadata import keys

ASKED_AT_A_TIME: Final = 16
ANSWER_BYTES_MAX: Final = 4 * 2**20
PATH: Final = "/api/v1/cost"


class Bill(NamedTuple):
    """The facts of a process, or why there are none."""

    address: HttpAddress
    facts: Mapping[str, object] | None
    cause: str = ""


async def registered(settings: Settings) -> Sequence[HttpAddress]:
    """Where the live processes of a cluster can be asked. Brokers that register no address are at http.listen, or have to be named.

    Raises as `open_for_reading` does.
    """
    found = [settings.http.listen]
    if not is_memory(settings.metadata.url):
        async with open_for_reading(settings) as stores:
            found += [parse_address(one.http) for one in await live_compactors(stores.metadata) if one.http]
            brokers = [decode_broker(record) async for record in stores.metadata.range_scan(*keys.brokers())]
            endpoints = [one.endpoint(HTTP_LISTENER) for one in brokers]
            found += [HttpAddress(one.host, one.port) for one in endpoints if one is not None]
    return list(dict.fromkeys(found))


def ask(addresses: Iterable[HttpAddress], *, within_s: float) -> Sequence[Bill]:
    """In the order given. Every one is asked once, a few at a time; a process that is asked at two addresses counts once."""
    with ThreadPoolExecutor(max_workers=ASKED_AT_A_TIME) as pool:
        bills = list(pool.map(lambda address: _ask(address, within_s), addresses))
    runs: set[object] = set()
    kept = []
    for bill in bills:
        run = None if bill.facts is None else bill.facts.get("run")
        if run is None or run not in runs:
            kept.append(bill)
        runs.add(run)
    return kept


def _ask(address: HttpAddress, within_s: float) -> Bill:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=within_s)
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
        if answer.status != http.client.OK:
            return Bill(address, None, f"answers {PATH} with {answer.status}, as an older release does, or another program")
        return Bill(address, msgspec.json.decode(body, type=dict[str, object]))
    except (http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError):
        return Bill(address, None, "what listens there is not the HTTP side of Forebay")
    except OSError as error:
        return Bill(address, None, (error.strerror or str(error) or "no answer").lower())
    finally:
        connection.close()
