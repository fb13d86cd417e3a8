"""Where values come from: a YAML file, the environment, the command line. Nothing is judged here but the writing itself."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from process.settings.keys import ENVIRONMENT_PREFIX, key_of

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


def _fix(error: OSError, chosen: str) -> str:
    if isinstance(error, PermissionError):
        return f"Make it and the folders above it readable to this user, or name another file with {chosen}."
    return f"Name another file with {chosen}."


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
