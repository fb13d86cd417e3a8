"""Sources → `Settings`, or every problem at once, each with the file and line, variable or flag it comes from.

Order, the last wins: defaults → ./forebay.yaml or the file named → `FOREBAY_*` → --set → single options.
A source (a YAML file, the environment, the command line) is read without judging anything but the writing itself.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from process.settings.errors import SettingsError
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
from process.settings.reference import ENVIRONMENT_PREFIX, SECTIONS, SETTINGS, key_of, nearest, variable_of

if TYPE_CHECKING:
    import yaml

CONFIG_VARIABLE: Final = "FOREBAY_CONFIG"
"""Names the file."""
_SERVICE_LINK: Final = re.compile(r"FOREBAY_([A-Z0-9]+_)*(SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP)(_[A-Z]+)?)?)")
"""What Kubernetes puts into every pod beside a Service called forebay…: not meant for us."""
_OF_DEVELOPMENT: Final = re.compile(r"FOREBAY_(CACHE|(TEST|SERVICES)_[A-Z0-9_]+)")
"""What the targets of the Makefile read: see services/README.md."""
_OF_CLIENTS: Final = "FOREBAY_BOOTSTRAP"
"""What commands that are Kafka clients read: see forebay/kafka_client/options.py."""
VALUES_MAX: Final = 10_000
"""A file refers to its own parts by aliases: a few lines may be more values than memory holds."""
_YAML_TAG: Final = "tag:yaml.org,2002:"
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
class Given:
    """A value somebody gave, and how messages speak of it: `origin` is where, `named` the place with the name used there,
    `quoted` the place with name and value."""

    key: str
    value: object
    origin: str
    named: str
    quoted: str


@dataclass(frozen=True, slots=True)
class Layer:
    """One source: what it gives, and what is wrong with how it is written."""

    given: tuple[Given, ...] = ()
    problems: tuple[str, ...] = ()


def from_file(path: Path, *, chosen: str = "--config") -> Layer:
    """Sections as mappings, or dotted keys; a key with nothing behind it is not given. `chosen`: how to name another file."""
    name = os.fspath(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return Layer(problems=(f"{name}: cannot be read ({error.strerror}) as uid {os.geteuid()}. {_fix(error, chosen)}",))
    except UnicodeDecodeError:
        return Layer(problems=(f"{name}: is not UTF-8 text.",))
    if not text.strip():
        return Layer()
    import yaml  # most starts read no file

    try:
        parsed = tuple(_parsed(text, name))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return Layer(problems=(f"{name}:{line}: is not YAML ({error.problem}).",))
    except yaml.YAMLError as error:
        return Layer(problems=(f"{name}: is not YAML ({str(error).splitlines()[0]}).",))
    except TypeError as error:
        return Layer(problems=(f"{name}:1: {error}.",))
    except RecursionError:
        return Layer(problems=(f"{name}: is nested too deeply. Write sections, and settings below them.",))
    given = tuple(one for one in parsed if isinstance(one, Given))
    unread = tuple(one for one in parsed if isinstance(one, str))
    return Layer(given=given, problems=(*unread, *_repeated(given)))


def from_default_file(path: Path) -> Layer:
    """Read the file that nobody named, if there is one. Where that cannot be seen, its settings could be missed: that is a problem."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return Layer()
    except OSError as error:
        where = f"{path}: cannot see as uid {os.geteuid()} whether there is one in {os.getcwd()} ({error.strerror})"
        return Layer(problems=(f"{where}. Start forebay in a folder that it may read, or name a file with --config ({os.devnull}: none).",))
    return from_file(path)


def from_current_folder() -> Layer:
    """Nothing, and a problem if the folder is gone: relative paths lead nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return Layer(problems=("The current folder is gone. Start forebay in one that is there.",))
    return Layer()


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Every `FOREBAY_…` variable but those that are read elsewhere and those Kubernetes makes."""
    return Layer(
        given=tuple(
            Given(key=key_of(variable), value=value, origin=variable, named=variable, quoted=f"{variable}={value}")
            for variable, value in sorted(environ.items())
            if variable.startswith(ENVIRONMENT_PREFIX)
            and variable not in {CONFIG_VARIABLE, _OF_CLIENTS}
            and not _SERVICE_LINK.fullmatch(variable)
            and not _OF_DEVELOPMENT.fullmatch(variable)
        )
    )


def from_assignments(assignments: Sequence[str]) -> Layer:
    """`a.b=c` of --set; the last of equal keys wins."""
    given, problems = [], []
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if separator:
            named, quoted = f"--set {key}", f"--set {assignment}"
            given.append(Given(key=key.strip(), value=value, origin="--set", named=named, quoted=quoted))
        else:
            problems.append(f"--set {assignment}: has no value. Write --set section.name=value.")
    return Layer(given=tuple(given), problems=tuple(problems))


def from_options(options: Mapping[str, tuple[str, str]]) -> Layer:
    """Options that stand for one setting each: key → (option, value)."""
    return Layer(
        given=tuple(
            Given(key=key, value=value, origin=option, named=option, quoted=f"{option} {value}") for key, (option, value) in options.items()
        )
    )


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


def load_file(file: Path) -> Loaded:
    """The defaults and one file, whatever the environment says."""
    return _compose([from_file(file)], advice=())


def _fix(error: OSError, chosen: str) -> str:
    if isinstance(error, PermissionError):
        return f"Make it and the folders above it readable to this user, or name another file with {chosen}."
    return f"Name another file with {chosen}."


def _parsed(text: str, file: str) -> Iterator[Given | str]:
    """Values, and problems with those that cannot be read."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            raise TypeError("expected `section:` and settings below it")
        found = _leaves(loader, root, file, prefix="", above=(root,))
        yield from islice(found, VALUES_MAX)
        if next(found, None) is not None:
            yield f"{file}: has more than {VALUES_MAX} values. Write out only what differs from the defaults."
    finally:
        loader.dispose()


def _leaves(
    loader: "yaml.SafeLoader", node: "yaml.MappingNode", file: str, *, prefix: str, above: tuple["yaml.MappingNode", ...]
) -> Iterator[Given | str]:
    import yaml

    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}" if isinstance(key_node, yaml.ScalarNode) else f"{prefix}?"
        origin = f"{file}:{key_node.start_mark.line + 1}"
        if value_node in above:
            yield f"{origin}: {key} refers to itself. Write its settings out."
            continue
        if isinstance(value_node, yaml.MappingNode):
            yield from _leaves(loader, value_node, file, prefix=f"{key}.", above=(*above, value_node))
            continue
        if isinstance(value_node, yaml.SequenceNode) and not all(isinstance(one, yaml.ScalarNode) for one in value_node.value):
            # Lists of lists by alias are a few lines that fill all memory.
            yield f"{origin}: {key} is a list of more than words. Write [one, two]."
            continue
        try:
            value: Any = loader.construct_object(value_node, deep=True)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError):
            # A tag nobody knows, or what looks like a date and is none; PyYAML lets out whatever its conversions raise.
            if not isinstance(value_node, yaml.ScalarNode) or not value_node.tag.startswith(_YAML_TAG):
                yield f"{origin}: {key} cannot be read. Write it without YAML tags, and text in quotes."
            if not isinstance(value_node, yaml.ScalarNode):
                continue
            value = value_node.value
        if value is None:
            continue
        text = value_node.value if isinstance(value_node, yaml.ScalarNode) else ",".join(map(str, value))
        yield Given(key=key, value=value, origin=origin, named=f"{origin}: {key}", quoted=f'{origin}: {key} "{text}"')


def _repeated(given: Sequence[Given]) -> Iterator[str]:
    first: dict[str, Given] = {}
    for one in given:
        if one.key in first:
            yield f"{one.origin}: {one.key} was set before, in {first[one.key].origin}. Keep one of the two."
        first.setdefault(one.key, one)


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


_EARLY_INSTEAD: Final = (
    "Write storage.early_bytes_per_second: how much is committed in a second before its object is stored; 0B for all in objects. "
    "Without it the metadata store says how much."
)
REPLACED: Final = {"storage.inline_bytes": _EARLY_INSTEAD, "storage.inline_commits_per_second": _EARLY_INSTEAD}
"""What to write instead of settings of earlier releases."""


def _unknown(one: Given) -> str:
    if one.key in SECTIONS:
        first = next(key for key in SETTINGS if key.startswith(f"{one.key}."))
        return f"{one.named} is a section, not a setting. Its settings go below it, e.g. {first}."
    if (instead := REPLACED.get(one.key)) is not None:
        return f"{one.named} is not a setting any more. {instead}"
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
