"""The stores of a running cluster, opened for reading by whoever only looks.

Nothing is made: a file or folder that is not there is an error. Opening the embedded stores takes the locks that say "in use" and clears
away what killed processes left, as every opening does; no record of a live process and no object is touched.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from forebay.commands.trace import EXIT_TIMED_OUT
from process.exit_codes import of_place, whole_path
from process.identity import check_same
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.settings.model import Settings
from process.settings.notation import has_path, is_memory, path_of
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.opening import Stores, open_stores

OPENING_TIMEOUT_S: Final = 30.0


@contextlib.asynccontextmanager
async def open_for_reading(settings: Settings) -> AsyncIterator[Stores]:
    """Raise `StartError` for stores that cannot be looked at from here, or are not one cluster's; `Unavailable` and `IncompatibleFormat` as
    `open_stores` does.
    """
    check_there(settings)
    clock = SystemClock()
    opening = open_stores(
        storage_url=settings.storage.url,
        s3_client=settings.storage.s3_client,
        metadata_url=settings.metadata.url,
        clock=clock,
        ids=IdSource(clock=clock),
        telemetry=Telemetry(),
    )
    async with contextlib.AsyncExitStack() as closing:
        try:
            async with asyncio.timeout(OPENING_TIMEOUT_S):
                stores = await closing.enter_async_context(opening)
                await check_same(stores, settings)
        except TimeoutError as error:
            raise StartError(
                f"The stores did not open within {OPENING_TIMEOUT_S:g} s: {settings.metadata.url}, {settings.storage.url}.",
                exit_code=EXIT_TIMED_OUT,
            ) from error
        yield stores


def check_there(settings: Settings) -> None:
    """Raise `StartError` for what lives in another process's memory, and for files that are not there."""
    for key, url in (("metadata.url", settings.metadata.url), ("storage.url", settings.storage.url)):
        fix = f"Give the brokers' own with -c FILE or --set {key}=…"
        if is_memory(url):
            raise StartError(
                f'{key} "{url}": what lives in the memory of a broker cannot be read from outside. {fix}', exit_code=EXIT_USAGE
            )
        if not has_path(url):
            continue
        try:
            path_of(url).stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StartError(f'{key} "{url}": {whole_path(path_of(url))} does not exist. {fix}', exit_code=EXIT_UNREACHABLE) from error
        except OSError as error:
            raise StartError(f'{key} "{url}": {of_place(error)}', exit_code=EXIT_UNREACHABLE) from error
