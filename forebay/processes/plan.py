"""The settings of each worker, from those of the supervisor, and what keeps several workers from running on them.

Worker i listens on every port + i and advertises every port + i; port 0 stays 0. A configured `broker.id` is that of worker 0,
worker i has it + i. Everything else is the same in all of them: sizes of buffers and caches hold per worker.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from process.settings.errors import EXIT_USAGE, StartError
from process.settings.loading import Loaded
from process.settings.model import Settings
from process.settings.notation import Listener, bracketed, is_memory, is_wildcard
from process.settings.reference import ENVIRONMENT_PREFIX, SETTINGS

_PORT_MAX: Final = 65_535


def assignments(loaded: Loaded, overrides: Mapping[str, str]) -> list[str]:
    """`key=value` for all that somebody gave, with `overrides` in its place: what another process needs to have the same settings."""
    given = {key: SETTINGS[key].show(loaded.settings) for key in SETTINGS if key in loaded.given}
    return [f"{key}={value}" for key, value in ({key: text for key, text in given.items() if text} | dict(overrides)).items()]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process whose settings all come from its command line."""
    return {name: value for name, value in environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def of_worker(loaded: Loaded, number: int, *, log_format: str) -> list[str]:
    """The assignments of worker `number`."""
    settings = loaded.settings
    overrides = {
        "kafka.listeners": _shown(settings.kafka.listeners, number),
        "http.listen": str(settings.http.listen._replace(port=_shifted(settings.http.listen.port, number))),
        "log.format": log_format,
    }
    if "kafka.advertised_listeners" in loaded.given:
        overrides["kafka.advertised_listeners"] = _shown(settings.kafka.advertised_listeners, number)
    if settings.http.advertised is not None:
        overrides["http.advertised"] = str(settings.http.advertised._replace(port=_shifted(settings.http.advertised.port, number)))
    if settings.broker.id is not None:
        overrides["broker.id"] = str(settings.broker.id + number)
    return assignments(loaded, overrides)


def check_shareable(settings: Settings, *, brokers: int, option: str) -> None:
    """Raise `StartError` if the stores live inside one process. `option` is what asked for several brokers, e.g. `--workers`."""
    urls = {"metadata.url": settings.metadata.url, "storage.url": settings.storage.url}
    alone = [f"{key}={url}" for key, url in urls.items() if is_memory(url)]
    if alone:
        raise StartError(
            f"{option} {brokers} needs stores that several processes can share, and not {' and '.join(alone)}. "
            "Use oxia:// with s3://, or sqlite:/// with file:// on this machine (which is what you get without these settings).",
            exit_code=EXIT_USAGE,
        )


def check(settings: Settings, *, workers: int) -> None:
    """Raise `StartError` if workers on these settings would get in each other's way."""
    check_shareable(settings, brokers=workers, option="--workers")
    taken: list[tuple[str, int, str]] = []
    for number in range(workers):
        for host, port, key in _addresses(settings, number):
            if port > _PORT_MAX:
                raise _refused(f"worker {number} would need port {port} for {key}, and there is none above {_PORT_MAX}. Start lower.")
            for other_host, other_port, other in taken:
                if port == other_port and _overlap(host, other_host):
                    raise _refused(
                        f"worker {number} would listen on {bracketed(host)}:{port} for {key}, which {other} has. "
                        f"Workers take consecutive ports: keep the ports of listeners and http.listen at least {workers} apart."
                    )
            taken.append((host, port, f"{key} of worker {number}"))


def _addresses(settings: Settings, number: int) -> Iterator[tuple[str, int, str]]:
    """The addresses whose port is not left to the system: host, port, setting."""
    for listener in settings.kafka.listeners:
        if listener.port:
            yield listener.host, listener.port + number, f"kafka.listeners ({listener.name})"
    if settings.http.listen.port:
        yield settings.http.listen.host, settings.http.listen.port + number, "http.listen"


def _overlap(one: str, other: str) -> bool:
    return one == other or is_wildcard(one) or is_wildcard(other)


def _refused(message: str) -> StartError:
    return StartError(message, exit_code=EXIT_USAGE)


def _shown(listeners: Sequence[Listener], number: int) -> str:
    return ",".join(str(listener._replace(port=_shifted(listener.port, number))) for listener in listeners)


def _shifted(port: int, number: int) -> int:
    return port + number if port else 0
