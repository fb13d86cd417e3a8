"""`forebay doctor`, once its options are read: all checks in their order, each with a deadline. Those of this machine are here.

Findings go to stdout, their sum and the stores' own words to stderr. Both stores are looked at together, too: one cluster, one time. An
embedded store is looked at where it is or, where none is yet, in a folder of its own on the same file system.
"""

import asyncio
import contextlib
import errno
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import typer

from broker.audit import refusal as audit_refusal
from forebay.commands.doctor import addresses, early, metadata, objects
from forebay.commands.doctor.addresses import Respondent, at_kafka
from forebay.commands.doctor.finding import (
    Checks,
    Finding,
    FindingStatus,
    exit_code,
    failed,
    finding_line,
    findings_as_json,
    findings_summary,
    ok,
    skipped,
    warning,
)
from forebay.commands.doctor.metadata import Cluster, MetadataChecks
from forebay.commands.doctor.objects import ObjectChecks, look_at_versions
from forebay.kafka_client.options import Output, Terminal
from process import preflight
from process.descriptors import DescriptorLimits, room_for
from process.disk_space import FileSystem, measure_folders
from process.identity import older, refusal
from process.settings.errors import SettingsError, StartError
from process.settings.loading import Loaded, load
from process.settings.model import Settings, warning_of_listeners
from process.settings.notation import Listener, has_path, is_loopback, is_memory, path_of, scheme_of, show_size
from process.settings.reference import SETTINGS
from process.store_clocks import AGREES_MS, DIFFERS_MS, MetadataClock, ObjectClock, Timed
from runtime import logs
from runtime.blocking import Blocking, ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from runtime.version import forebay_version
from storage.catalog.brokers import BROKER_ID_MAX, id_taken
from storage.catalog.collections import CollectionsRecord, NewerStore, WentBack, read_collections
from storage.catalog.identity import Identity, StoreContents, judge, look
from storage.log.early_objects import LATE_AFTER_S
from storage.objects.block_folder import BlockFolder
from storage.objects.port import TEMPORARY_FOLDER
from storage.opening import Stores, open_stores

TRIAL_PREFIX: Final = ".forebay-doctor-"
BELONG: Final = "both stores"
CLOCKS: Final = {"object_store": "clock of the object store", "metadata": "clock of the metadata store"}
AGE: Final = "age of the metadata"
LOOK_S: Final = 20.0
SHOWN_MAX: Final = 3
SETTINGS_CHECK: Final = "settings"
BROKER_ID: Final = "broker.id"
AUTHENTICATION: Final = "authentication"
OPEN_S: Final = 30.0
CLOSE_S: Final = 10.0
_MEMORY: Final = "memory://"
OPEN_FILES: Final = "open files"
MEMORY: Final = "memory"
DISK: Final = "disk"
AUDIT_LOG: Final = "audit log"
CACHE_DIR: Final = "shared cache"


def doctor(file: Path | None, assignments: Sequence[str], options: Mapping[str, tuple[str, str]], terminal: Terminal) -> int:
    """The exit code."""
    is_for_people = terminal.output is Output.TABLE

    def tell(finding: Finding) -> None:
        if is_for_people:
            typer.echo(finding_line(finding))

    # What stores log of their own accord is in the findings.
    logs.configure(format="auto", level="error")
    try:
        loaded = load(file=file, environ=os.environ, assignments=assignments, options=options)
    except SettingsError as error:
        findings = of_settings_errors(error.problems)
        for finding in findings:
            tell(finding)
    else:
        findings = asyncio.run(examine(loaded, tell))
    if is_for_people:
        terminal.say(findings_summary(findings))
    else:
        typer.echo(findings_as_json(findings))
    return exit_code(findings)


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
    checks.add(machine_versions())
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
        return of_open_files(room_for(settings))

    async def memory() -> Finding:
        return of_memory(settings, limit_bytes=preflight.memory_limit_bytes())

    await checks.run(OPEN_FILES, open_files, within_s=LOOK_S)
    await checks.run(MEMORY, memory, within_s=LOOK_S)
    await checks.run(DISK, partial(_look_at_disks, settings, checks, blocking), within_s=LOOK_S)
    if (path := settings.log.audit) is not None:

        async def audit_log() -> Finding:
            return await blocking.run(partial(of_audit_log, path))

        await checks.run(AUDIT_LOG, audit_log, within_s=LOOK_S)
    if (folder := settings.storage.cache_dir) is not None:

        async def cache_dir() -> Finding:
            return await blocking.run(partial(of_cache_dir, folder, bytes_max=settings.storage.cache_dir_bytes))

        await checks.run(CACHE_DIR, cache_dir, within_s=LOOK_S)


async def _look_at_disks(settings: Settings, checks: Checks, blocking: Blocking) -> None:
    folders = sorted({folder_of(url) for url in (settings.storage.url, settings.metadata.url) if has_path(url)})
    try:
        found = await blocking.run(lambda: measure_folders(sorted({preflight.nearest_there(folder) for folder in folders})))
    except OSError as error:
        # Whether that matters the stores tell.
        checks.add(skipped(DISK, f"{error.filename} cannot be looked at ({error.strerror})"))
        return
    for one in found:
        checks.add(of_disk(one))


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
            checks.add(skipped(BELONG, "one of them is not well"))
        else:
            both = Stores(ordering.metadata, opened.objects, ordering.times)
            await look_at_both(both, settings, checks, clock=clock)
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

    async def port_of(port: addresses.Port) -> Finding:
        taken = await blocking.run(partial(addresses.look_at_port, port))
        if taken is not None and isinstance(taken.answer, Respondent):
            served.add(port.port)
        return addresses.of_port(port, taken, cluster)

    for port in addresses.ports_of(settings):
        await checks.run(port.check, partial(port_of, port), within_s=LOOK_S)

    bound = {listener.name: listener for listener in settings.kafka.listeners}

    async def address_of(listener: Listener) -> Finding:
        ours = bound[listener.name]
        answer = None
        if listener.port:
            answer = await blocking.run(partial(at_kafka, listener.host, listener.port, within_s=addresses.ANSWER_S))
        return addresses.of_address(ours, listener, answer, cluster, is_served=ours.port in served)

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


def machine_versions() -> Finding:
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
        return failed(AUDIT_LOG, audit_refusal(path, error))
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


def is_there(url: str) -> bool:
    """Whether a broker has used the store of that URL: a metadata file, or a folder that was prepared. True of remote ones.

    Raise OSError where that cannot be seen.
    """
    if not has_path(url):
        return True
    path = path_of(url)
    return path.exists() if scheme_of(url) == "sqlite" else (path / TEMPORARY_FOLDER).is_dir()


def folder_of(url: str) -> Path:
    """The folder that a store of this machine writes to."""
    path = path_of(url)
    return (path.parent if scheme_of(url) == "sqlite" else path).absolute()


@contextlib.contextmanager
def looked_at(url: str, *, key: str) -> Iterator[str]:
    """The URL to open. Raise `StartError` where the folder cannot be written to, or made.

    What is not there is not made: a store in a folder that is gone afterwards shows what its file system can do.
    """
    if not has_path(url):
        yield url
        return
    preflight.check_store_folder(folder_of(url), key=key, url=url, is_made=False)
    if is_there(url):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix=TRIAL_PREFIX, dir=preflight.nearest_there(folder_of(url))) as folder:
        yield f"sqlite:///{folder}/meta.db" if scheme_of(url) == "sqlite" else f"file://{folder}"


def of_identity(found: StoreContents, settings: Settings) -> Finding:
    """PURE. As a start without --accept-new-store would judge."""
    verdict = judge(found, accept_new_store=False)
    if verdict.is_refusal:
        return failed(BELONG, refusal(Identity(None, verdict, found), settings, accept_new_store=False))
    if found.cluster is None:
        return ok(BELONG, "no cluster has used them yet; the first start begins one")
    if found.marker is None:
        return ok(BELONG, f"the metadata are those of cluster {found.cluster.cluster_id}; the next start marks the object store as its own")
    return ok(BELONG, f"they are those of cluster {found.cluster.cluster_id}")


def of_clock(check: str, ahead_ms: int | None) -> Finding:
    """PURE. `ahead_ms`: how far this machine's clock is ahead of the store's; None if that cannot be measured now."""
    if ahead_ms is None:
        return skipped(check, "what was put to look at it was removed meanwhile")
    if abs(ahead_ms) < AGREES_MS:
        return ok(check, "it agrees with this machine's")
    way = "ahead of" if ahead_ms > 0 else "behind"
    said = f"this machine's clock is {abs(ahead_ms) / 1_000:.1f} s {way} it: set the one that is wrong, e.g. by NTP"
    return warning(check, said) if abs(ahead_ms) >= DIFFERS_MS else ok(check, said)


def of_age(found: WentBack | None, known: CollectionsRecord, settings: Settings) -> Finding:
    """PURE. `found`: what the object store has seen that the metadata do not know."""
    if found is not None:
        return failed(AGE, older(found, settings))
    if known.missing:
        names = ", ".join(one.key for one in known.missing[:SHOWN_MAX])
        said = f"live entries name {len(known.missing)} objects that are not there, such as {names}. Nothing is deleted meanwhile"
        return failed(AGE, f"{said}. Bring them back, or accept each that is lost for good: forebay storage accept-lost KEY")
    return ok(AGE, "the metadata know all that the object store has seen")


async def look_at_both(opened: Stores, settings: Settings, checks: Checks, *, clock: Clock) -> None:
    """`opened` has both stores of the settings, or where there is none yet an empty one in its place."""

    async def identity() -> Finding:
        return of_identity(await look(opened.metadata, opened.objects), settings)

    async def time(check: str, timed: Timed) -> Finding:
        return of_clock(check, await timed.ahead_ms())

    async def age() -> Finding:
        found = await NewerStore(opened.metadata, opened.objects, IdSource(clock=clock)).look()
        return of_age(found, await read_collections(opened.metadata), settings)

    async def early_batches() -> Finding:
        now_ms = clock.now_ms()
        found = await early.find_unstored(opened.metadata, opened.objects, before_ms=now_ms - int(LATE_AFTER_S * 1_000))
        return early.of_unstored(found, now_ms=now_ms)

    await checks.run(BELONG, identity, within_s=LOOK_S)
    await checks.run(AGE, age, within_s=LOOK_S)
    await checks.run(early.CHECK, early_batches, within_s=LOOK_S)
    # No broker has this id: nobody else's probe has the same name.
    timed: dict[str, Timed] = {"object_store": ObjectClock(opened.objects, lambda: BROKER_ID_MAX, clock)}
    if opened.times is not None:
        timed["metadata"] = MetadataClock(opened.metadata, opened.times, lambda: BROKER_ID_MAX, clock)
    for name, one in timed.items():
        await checks.run(CLOCKS[name], partial(time, CLOCKS[name], one), within_s=LOOK_S)
