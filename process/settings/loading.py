"""Sources → `Settings`, or every problem at once, each with the file and line, variable or flag it comes from.

Order, the last wins: defaults → ./forebay.yaml or the file named → `FOREBAY_*` → --set → single options.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from process.settings.errors import SettingsError
from process.settings.keys import ENVIRONMENT_PREFIX, SECTIONS, SETTINGS, nearest, variable_of
from process.settings.model import (
    DERIVED_FROM,
    ConflictError,
    InvalidSettings,
    Settings,
    SettingsConflict,
    derived_defaults,
    warning_of_listeners,
)
from process.settings.notation import OutOfRangeError, without_secrets
from process.settings.sources import (
    Given,
    Layer,
    from_assignments,
    from_current_folder,
    from_default_file,
    from_environment,
    from_file,
    from_options,
)

DEFAULT_FILE: Final = Path("forebay.yaml")

_KAFKA_IMAGE_VARIABLES: Final = {
    "KAFKA_LISTENERS": "kafka.listeners",
    "KAFKA_ADVERTISED_LISTENERS": "kafka.advertised_listeners",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "kafka.auto_create_topics",
    "KAFKA_NUM_PARTITIONS": "kafka.default_partitions",
    "KAFKA_SOCKET_REQUEST_MAX_BYTES": "kafka.max_request_bytes",
    "KAFKA_MAX_CONNECTIONS": "kafka.max_connections",
    "KAFKA_CONNECTIONS_MAX_IDLE_MS": "kafka.idle_timeout",
    "KAFKA_BROKER_ID": "broker.id",
    "KAFKA_NODE_ID": "broker.id",
    "KAFKA_BROKER_RACK": "broker.rack",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """`origins` says for every key where its value comes from, `given` which keys somebody set; `advice` is for the operator."""

    settings: Settings
    origins: Mapping[str, str]
    given: frozenset[str]
    advice: tuple[str, ...]


def load(
    *,
    file: Path | None = None,
    environ: Mapping[str, str],
    assignments: Sequence[str] = (),
    options: Mapping[str, tuple[str, str]] | None = None,
) -> Loaded:
    """Read all sources. `file` None: `./forebay.yaml` if there is one. `options`: key → (option, value).

    Raise `SettingsError` with all problems.
    """
    return _compose(_layers(file, environ, assignments, options), advice=tuple(_advice(environ)))


def readable_log_format(
    *,
    file: Path | None = None,
    environ: Mapping[str, str],
    assignments: Sequence[str] = (),
    options: Mapping[str, tuple[str, str]] | None = None,
) -> str:
    """The form in which to say that these settings cannot be read: the last `log.format` in them that can, else the default."""
    notation = SETTINGS["log.format"].notation
    readable = SETTINGS["log.format"].default
    for layer in _layers(file, environ, assignments, options):
        for one in layer.given:
            if one.key == "log.format":
                with contextlib.suppress(ValueError):
                    readable = notation.parse(one.value)
    return str(readable)


def _layers(
    file: Path | None, environ: Mapping[str, str], assignments: Sequence[str], options: Mapping[str, tuple[str, str]] | None
) -> list[Layer]:
    return [
        from_current_folder(),
        from_file(file) if file else from_default_file(DEFAULT_FILE),
        from_environment(environ),
        from_assignments(assignments),
        from_options(options or {}),
    ]


def load_file(file: Path) -> Loaded:
    """The defaults and one file, whatever the environment says."""
    return _compose([from_file(file)], advice=())


def _compose(layers: Sequence[Layer], *, advice: tuple[str, ...]) -> Loaded:
    problems = [problem for layer in layers for problem in layer.problems]
    given: dict[str, Given] = {}
    for layer in layers:
        problems += [_unknown(one) for one in layer.given if one.key not in SETTINGS]
        given |= {one.key: one for one in layer.given if one.key in SETTINGS}
    try:
        settings = Settings(**_by_section(given))
    except InvalidSettings as error:
        problems += [_wrong(key, cause, given) for key, cause in error.found]
        raise SettingsError([*problems, *_contradictions(error.conflicts, given)]) from error
    except ConflictError as error:
        raise SettingsError([*problems, *_contradictions(error.found, given)]) from error
    if problems:
        raise SettingsError(problems)
    exposure = warning_of_listeners(settings.kafka.listeners)
    return Loaded(settings, _origins(settings, given), frozenset(given), advice if exposure is None else (*advice, exposure))


def _by_section(given: Mapping[str, Given]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for key, one in given.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = one.value
    return sections


def _unknown(one: Given) -> str:
    if one.key in SECTIONS:
        first = next(key for key in SETTINGS if key.startswith(f"{one.key}."))
        return f"{one.named} is a section, not a setting. Its settings go below it, e.g. {first}."
    meant = nearest(one.key, list(SETTINGS))
    if meant is None:
        return f"{one.named} is not a setting. `forebay config init` shows them all."
    in_environment = one.named.startswith(ENVIRONMENT_PREFIX)
    return f"{one.named} is not a setting. Did you mean {variable_of(meant) if in_environment else meant}?"


def _wrong(key: str, cause: ValueError, given: Mapping[str, Given]) -> str:
    default = SETTINGS[key].notation.show(SETTINGS[key].default)
    hint = f" (default {default})" if default and isinstance(cause, OutOfRangeError) else ""
    phrase = f"{cause}{hint}"
    return f"{_quoted(key, given)}: {phrase}{'' if phrase.endswith('?') else '.'}"


def _contradictions(conflicts: Sequence[SettingsConflict], given: Mapping[str, Given]) -> list[str]:
    return [f"{_quoted(one.key, given)}: {one.phrase}." for one in conflicts]


def _quoted(key: str, given: Mapping[str, Given]) -> str:
    if key in given:
        return without_secrets(given[key].quoted)
    return f'{key} "{SETTINGS[key].notation.show(SETTINGS[key].default)}"'


def _origins(settings: Settings, given: Mapping[str, Given]) -> dict[str, str]:
    derived = derived_defaults(storage_url=settings.storage.url, listeners=settings.kafka.listeners)
    derived_from = {key: f"derived from {DERIVED_FROM[key]}" for key in derived}
    return {key: given[key].origin if key in given else derived_from.get(key, "default") for key in SETTINGS}


def _advice(environ: Mapping[str, str]) -> Iterator[str]:
    for variable, key in _KAFKA_IMAGE_VARIABLES.items():
        if variable in environ and variable_of(key) not in environ:
            yield f"{variable} is set but not read by forebay. Set {variable_of(key)} (setting {key})."
