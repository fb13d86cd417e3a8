"""All checks in their order, each with a deadline."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from forebay.commands.doctor import advertised, machine, metadata, objects, ports, together
from forebay.commands.doctor.answers import Respondent, at_kafka
from forebay.commands.doctor.finding import Checks, Finding, FindingStatus, failed, ok, skipped, warning
from forebay.commands.doctor.metadata import Cluster, MetadataChecks
from forebay.commands.doctor.objects import ObjectChecks
from forebay.commands.doctor.place import folder_of, is_there, looked_at
from forebay.commands.doctor.versions import look_at_versions
from process import preflight
from process.descriptors import room_for
from process.disk_space import measure_folders
from process.settings.keys import SETTINGS
from process.settings.loading import Loaded
from process.settings.model import Settings, warning_of_listeners
from process.settings.notation import Listener, has_path, is_loopback, is_memory
from runtime.blocking import Blocking, ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.brokers import id_taken
from storage.opening import Stores, open_stores

SETTINGS_CHECK: Final = "settings"
BROKER_ID: Final = "broker.id"
AUTHENTICATION: Final = "authentication"

OPEN_S: Final = 30.0
LOOK_S: Final = 20.0
CLOSE_S: Final = 10.0

_MEMORY: Final = "memory://"


def of_settings_errors(problems: Sequence[str]) -> list[Finding]:
    """What is left to say when the settings cannot be read."""
    return [*(failed(SETTINGS_CHECK, problem) for problem in problems), skipped("everything else", "the settings are wrong")]


def of_settings(loaded: Loaded) -> Finding:
    """How many were given, and where."""
    sources = sorted({loaded.origins[key].rpartition(":")[0] or loaded.origins[key] for key in loaded.given})
    where = f", in {', '.join(sources)}" if sources else ""
    return ok(SETTINGS_CHECK, f"{len(loaded.given)} of {len(SETTINGS)} are given{where}")


async def examine(loaded: Loaded, tell: Callable[[Finding], None]) -> list[Finding]:
    """Every finding, yielded as soon as it is made."""
    checks, clock = Checks(tell), SystemClock()
    settings = loaded.settings
    checks.add(of_settings(loaded))
    # What is exposed has a check of its own.
    for line in loaded.advice:
        if line != warning_of_listeners(settings.kafka.listeners):
            checks.add(warning(SETTINGS_CHECK, line))
    checks.add(machine.versions())
    blocking = ThreadBlocking(threads=4, name="doctor")
    try:
        await _look_at_machine(settings, checks, blocking)
        cluster = await _look_at_stores(settings, checks, clock)
        if (of_broker := of_id(settings.broker.id, settings.kafka.advertised_listeners, cluster)) is not None:
            checks.add(of_broker)
        await _look_at_addresses(settings, cluster, checks, blocking)
    finally:
        blocking.close()
    for finding in of_exposure(settings):
        checks.add(finding)
    return checks.findings


async def _look_at_machine(settings: Settings, checks: Checks, blocking: Blocking) -> None:
    async def open_files() -> Finding:
        return machine.of_open_files(room_for(settings))

    async def memory() -> Finding:
        return machine.of_memory(settings, limit_bytes=preflight.memory_limit_bytes())

    await checks.run(machine.OPEN_FILES, open_files, within_s=LOOK_S)
    await checks.run(machine.MEMORY, memory, within_s=LOOK_S)
    await checks.run(machine.DISK, partial(_look_at_disks, settings, checks, blocking), within_s=LOOK_S)
    if (path := settings.log.audit) is not None:

        async def audit_log() -> Finding:
            return await blocking.run(partial(machine.of_audit_log, path))

        await checks.run(machine.AUDIT_LOG, audit_log, within_s=LOOK_S)
    if (folder := settings.storage.cache_dir) is not None:

        async def cache_dir() -> Finding:
            return await blocking.run(partial(machine.of_cache_dir, folder, bytes_max=settings.storage.cache_dir_bytes))

        await checks.run(machine.CACHE_DIR, cache_dir, within_s=LOOK_S)


async def _look_at_disks(settings: Settings, checks: Checks, blocking: Blocking) -> None:
    folders = sorted({folder_of(url) for url in (settings.storage.url, settings.metadata.url) if has_path(url)})
    try:
        found = await blocking.run(lambda: measure_folders(sorted({preflight.nearest_there(folder) for folder in folders})))
    except OSError as error:
        # Whether that matters the stores tell.
        checks.add(skipped(machine.DISK, f"{error.filename} cannot be looked at ({error.strerror})"))
        return
    for one in found:
        checks.add(machine.of_disk(one))


async def _look_at_stores(settings: Settings, checks: Checks, clock: Clock) -> Cluster:
    """Each by itself, and then both beside each other."""
    if is_memory(settings.metadata.url):
        # The settings allow it for both or for neither.
        for check in (metadata.STORE, objects.STORE):
            checks.add(skipped(check, "what is kept in memory:// is in the process of its broker, and gone with it"))
        return Cluster()
    ids = IdSource(clock=clock)
    cluster = Cluster()
    first = len(checks.findings)
    closing = contextlib.AsyncExitStack()
    try:
        ordering = await _opened(settings, metadata.STORE, "metadata.url", checks, closing, clock)
        if ordering is None:
            _skip(checks, metadata.OF_STORE, "the metadata store cannot be opened")
        else:
            checks.add(ok(metadata.STORE, _known(settings.metadata.url, "can be read")))
            cluster = await MetadataChecks(ordering.metadata, checks, clock=clock, ids=ids).run()
        if (route := objects.of_route(settings.storage.url)) is not None:
            checks.add(route)
        opened = await _opened(settings, objects.STORE, "storage.url", checks, closing, clock)
        if opened is None:
            _skip(checks, objects.OF_STORE, "the object store cannot be opened")
        else:
            url = settings.storage.url
            await ObjectChecks(
                opened.objects, checks, url=url, known=_known(url, "takes writes, and what was written is read back"), clock=clock, ids=ids
            ).run()
            await look_at_versions(url, checks, clock=clock)
        if ordering is None or opened is None or any(one.verdict is FindingStatus.FAILED for one in checks.findings[first:]):
            checks.add(skipped(together.BELONG, "one of them is not well"))
        else:
            both = Stores(ordering.metadata, opened.objects, ordering.times)
            await together.look_at_both(both, settings, checks, clock=clock)
    finally:
        await checks.run("closing the stores", partial(_closed, closing), within_s=CLOSE_S)
    return cluster


async def _opened(
    settings: Settings, check: str, key: str, checks: Checks, closing: contextlib.AsyncExitStack, clock: Clock
) -> Stores | None:
    """The store of `key`, beside another that is empty; None if it does not open, which is reported."""
    url = SETTINGS[key].value_in(settings)
    opened: list[Stores] = []

    async def opening() -> None:
        is_metadata = key == "metadata.url"
        # Closed even if the other half does not open.
        place = closing.enter_context(looked_at(url, key=key))
        stores = open_stores(
            storage_url=_MEMORY if is_metadata else place,
            s3_client="aioboto3" if settings.storage.s3_client == "aioboto3" else "obstore",
            metadata_url=place if is_metadata else _MEMORY,
            clock=clock,
            ids=IdSource(clock=clock),
            telemetry=Telemetry(),
        )
        opened.append(await closing.enter_async_context(stores))

    await checks.run(check, opening, within_s=OPEN_S)
    return opened[0] if opened else None


async def _closed(closing: contextlib.AsyncExitStack) -> None:
    await closing.aclose()


def _skip(checks: Checks, names: Sequence[str], because: str) -> None:
    for name in names:
        checks.add(skipped(name, because))


def _known(url: str, what: str) -> str:
    """`what` is true of the store, or of the one that was made for this."""
    if is_there(url):
        return f"{url} {what}"
    return f"{url} is not there yet and would be made; one beside it, which is gone again, {what}"


def of_id(broker_id: int | None, listeners: Sequence[object], cluster: Cluster) -> Finding | None:
    """None where the id is left to the cluster."""
    if broker_id is None:
        return None
    holder = next((one for one in cluster.brokers if one.broker_id == broker_id), None)
    if not cluster.is_known:
        return skipped(BROKER_ID, "the registered brokers are not known")
    if holder is None:
        return ok(BROKER_ID, f"{broker_id} is free")
    if tuple(map(str, holder.kafka_listeners)) == tuple(map(str, listeners)):
        return ok(BROKER_ID, f"{broker_id} is held by the broker that runs on these settings")
    return failed(BROKER_ID, str(id_taken(holder)))


async def _look_at_addresses(settings: Settings, cluster: Cluster, checks: Checks, blocking: Blocking) -> None:
    served: set[int] = set()

    async def port_of(port: ports.Port) -> Finding:
        taken = await blocking.run(partial(ports.look, port))
        if taken is not None and isinstance(taken.answer, Respondent):
            served.add(port.port)
        return ports.of_port(port, taken, cluster)

    for port in ports.ports_of(settings):
        await checks.run(port.check, partial(port_of, port), within_s=LOOK_S)

    bound = {listener.name: listener for listener in settings.kafka.listeners}

    async def address_of(listener: Listener) -> Finding:
        ours = bound[listener.name]
        answer = None
        if listener.port:
            answer = await blocking.run(partial(at_kafka, listener.host, listener.port, within_s=ports.ANSWER_S))
        return advertised.of_address(ours, listener, answer, cluster, is_served=ours.port in served)

    for listener in settings.kafka.advertised_listeners:
        await checks.run(f"advertised: {listener.name}", partial(address_of, listener), within_s=LOOK_S)


def of_exposure(settings: Settings) -> list[Finding]:
    """What anyone can do without a login."""
    warned = warning_of_listeners(settings.kafka.listeners)
    found = [warning(AUTHENTICATION, warned) if warned else ok(AUTHENTICATION, "there is none, and Kafka is served to this machine alone")]
    if not is_loopback(settings.http.listen.host):
        seen = f"http.listen {settings.http.listen}: everybody who can reach it sees metrics and health, as http.insecure allows"
        found.append(warning(AUTHENTICATION, seen))
    return found
