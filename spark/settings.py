"""The settings of a job: a frozen dataclass, filled from flags, then the environment, then a file, then defaults.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CountSettings(JobSettings):
        topic: str = setting(help="Read this topic.", metavar="TOPIC")

is `--topic`, FOREBAY_SPARK_TOPIC, and `topic` in the TOML file, there for all jobs or in the job's own table. All that is wrong is said at
once (`WrongSettings`), before a session is started.
"""

import argparse
import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

ENVIRONMENT: Final = "FOREBAY_SPARK_"
_FORMERLY: Final = "config"
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_TRUTHS: Final = {"true": True, "false": False}

S = TypeVar("S", bound="AnySettings")


class WrongSettings(Exception):
    """One line for each thing that is wrong."""

    def __init__(self, complaints: Sequence[str]) -> None:
        super().__init__("\n".join(complaints))


class Duration(float):
    """Seconds, written `500ms`, `30s`, `15m`, `36h` or `7d`."""

    @property
    def for_spark(self) -> str:
        return f"{round(self * 1000)} milliseconds"

    @property
    def as_written(self) -> str:
        """In the largest unit that makes a whole number of it."""
        wholes = (f"{int(self / unit_s)}{unit}" for unit, unit_s in reversed(_UNITS_S.items()) if (self / unit_s).is_integer())
        return next(wholes, f"{self:g}s")


class Required:
    """The default of a setting that has none."""


def setting(*, help: str, metavar: str = "", default: Any = Required) -> Any:  # noqa: A002  # the word of argparse
    """A field of a settings class. `help` is a sentence, imperative."""
    about = {"help": help, "metavar": metavar}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnySettings:
    def complaints(self) -> Iterator[str]:
        """What is wrong with values that are well-formed, a sentence each."""
        yield from ()


def load(kind: type[S], job: str, arguments: Sequence[str], environ: Mapping[str, str], *, about: str = "") -> S:
    """Raise `WrongSettings`. `--help` prints the settings and raises `SystemExit`."""
    flags = vars(_parser(kind, job, about).parse_args(list(arguments)))
    path = flags.pop(_FORMERLY) or environ.get(f"{ENVIRONMENT}CONFIG")
    filed, complaints = _filed(kind, job, path) if path else ({}, [])
    given: dict[str, Any] = {}
    for name, (one, wanted) in _fields(kind).items():
        try:
            given[name] = _chosen(one, wanted, flags.get(name), environ.get(f"{ENVIRONMENT}{name.upper()}"), filed.get(name))
        except ValueError as error:
            complaints.append(str(error))
    if not complaints:
        made = kind(**given)
        complaints = list(made.complaints())
        if not complaints:
            return made
    raise WrongSettings(complaints)


def _fields(kind: type[AnySettings]) -> dict[str, tuple["dataclasses.Field[Any]", Any]]:
    hints = get_type_hints(kind)
    return {one.name: (one, hints[one.name]) for one in dataclasses.fields(kind)}


def _chosen(one: "dataclasses.Field[Any]", wanted: Any, flag: Any, variable: str | None, filed: Any) -> Any:
    """The strongest of what was given. Mappings add up. Raise `ValueError`."""
    flag_name = _flag(one.name)
    sources = [
        (filed, f"{one.name} in the file"),
        (variable, f"{ENVIRONMENT}{one.name.upper()}"),
        (flag, flag_name),
    ]
    if get_origin(wanted) is Mapping:
        merged: dict[str, str] = {}
        for value, source in sources:
            merged |= _mapping(value, source) if value is not None else {}
        return merged
    for value, source in reversed(sources):
        if value is not None:
            return _read(wanted, value, source)
    if one.default is Required:
        raise ValueError(f"{flag_name} is missing: {one.metadata['help']}")
    return one.default


def _mapping(value: Any, source: str) -> dict[str, str]:
    if isinstance(value, dict):
        return _flat(value)
    pairs = value if isinstance(value, list) else [part for part in str(value).split(",") if part]
    found = {}
    for pair in pairs:
        name, equals, one = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{source}={pair!r}: expected NAME=VALUE")
        found[name.strip()] = one
    return found


def _flat(table: Mapping[str, Any]) -> dict[str, str]:
    """TOML makes tables of a name with points that is not quoted."""
    found: dict[str, str] = {}
    for name, one in table.items():
        found |= {f"{name}.{rest}": value for rest, value in _flat(one).items()} if isinstance(one, dict) else {str(name): _text(one)}
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(wanted: Any, value: Any, source: str) -> Any:
    """A value of the type that a field is declared to have. Raise `ValueError`."""
    wanted = _without_none(wanted)
    if get_origin(wanted) is tuple:
        items = value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]
        return tuple(str(item) for item in items if str(item))
    text = _text(value)
    if get_origin(wanted) is Literal:
        if text not in get_args(wanted):
            raise ValueError(f"{source}={text!r}: expected {_or(get_args(wanted))}")
        return text
    if wanted is bool:
        if text not in _TRUTHS:
            raise ValueError(f"{source}={text!r}: expected true or false")
        return _TRUTHS[text]
    if wanted is Duration:
        matched = _DURATION.fullmatch(text)
        if matched is None:
            raise ValueError(f"{source}={text!r}: expected a number and a unit, as in 500ms, 30s, 15m, 36h or 7d")
        return Duration(float(matched[1]) * _UNITS_S[matched[2]])
    try:
        return wanted(text)
    except ValueError as error:
        raise ValueError(f"{source}={text!r}: expected {'a whole number' if wanted is int else 'a number'}") from error


def _filed(kind: type[AnySettings], job: str, path: str) -> tuple[dict[str, Any], list[str]]:
    """What the file says to this job, and what is wrong with it. Tables of other jobs are theirs."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"the settings file {path} cannot be read: {error.strerror}"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [f"{path} is no TOML: {error}"]
    known = _fields(kind)
    mappings = {name for name, (_, wanted) in known.items() if get_origin(wanted) is Mapping}
    shared = {name: value for name, value in found.items() if not isinstance(value, dict) or name in mappings}
    own = found.get(job, {})
    complaints = [f"{path}: {job} has no setting {name!r}{_perhaps(name, known)}" for name in own if name not in known]
    merged = shared | own | {name: _flat(shared[name]) | _flat(own[name]) for name in mappings if name in shared and name in own}
    # A setting for all jobs may be one that this job has not.
    return {name: value for name, value in merged.items() if name in known}, complaints


def _perhaps(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else str(words[0])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if not message.startswith("unrecognized arguments: "):
            raise WrongSettings([message])
        known = [option for action in self._actions for option in action.option_strings]
        raise WrongSettings([f"{self.prog} has no option {one}{_perhaps(one, dict.fromkeys(known))}" for one in unknown])


def _parser(kind: type[AnySettings], job: str, about: str) -> _Parser:
    parser = _Parser(prog=job, description=about, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config", metavar="FILE", help=f"Read settings from this TOML file. [{ENVIRONMENT}CONFIG; flags and environment are stronger]"
    )
    for name, (one, wanted) in _fields(kind).items():
        is_mapping = get_origin(wanted) is Mapping
        parser.add_argument(
            _flag(name),
            dest=name,
            action="append" if is_mapping else "store",
            nargs="?" if wanted is bool else None,
            const="true" if wanted is bool else None,
            metavar=one.metadata["metavar"] or ("NAME=VALUE" if is_mapping else _metavar(wanted)),
            help=one.metadata["help"].replace("%", "%%") + _default(one),
        )
    return parser


def _without_none(wanted: Any) -> Any:
    if get_origin(wanted) in (Union, types.UnionType):
        (wanted,) = (one for one in get_args(wanted) if one is not type(None))
    return wanted


def _metavar(wanted: Any) -> str:
    wanted = _without_none(wanted)
    if get_origin(wanted) is Literal:
        return "|".join(get_args(wanted))
    return {int: "N", float: "N", Duration: "TIME", Path: "PATH", bool: "true|false"}.get(wanted, "VALUE")


def _default(one: "dataclasses.Field[Any]") -> str:
    default = one.default
    if default is Required:
        return " [required]"
    if default is dataclasses.MISSING or default in (None, "", ()):
        return ""
    if isinstance(default, Duration):
        return f" [default: {default.as_written}]"
    return f" [default: {','.join(default) if isinstance(default, tuple) else _text(default)}]"
