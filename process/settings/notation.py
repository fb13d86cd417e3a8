"""How values are written in files, variables and flags: `250ms`, `8MiB`, `true`, `NAME://host:port`, URLs; and how they are shown again.

A notation accepts what it shows. Its errors are phrases that follow a setting's name: `must be between 1ms and 60s`.
Listeners have Kafka's syntax, several separated by commas. Every listener speaks plaintext: names that promise more (SSL, SASL) are
refused, not ignored. URLs of stores that cannot be opened are refused here, before anything is touched.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from storage.metadata.oxia.location import parse_oxia_url
from storage.objects.s3.location import parse_s3_url

_MICROSECONDS: Final = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}
_BYTES: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER_AND_UNIT: Final = re.compile(r"([+-]?\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)")
_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
LABELS_MAX: Final = 16
LABEL_CHARS_MAX: Final = 128
_LABEL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LABELS_COMPLAINT: Final = "must be name=value pairs, separated by commas: team=payments,scenario=nightly"
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_LISTENER: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)://(\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]*):(\d{1,5})")
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]+):(\d{1,5})")
HTTP: Final = "HTTP"
"""The name that the address of the HTTP API has among those of a broker."""
_SECURED: Final = re.compile(r"SSL|SASL|TLS")
_PORT_MAX: Final = 65_535
_MEMORY: Final = "memory"
_OBJECT_STORES: Final = {"s3": "s3://bucket/prefix", "file": "file:///path", _MEMORY: "memory://"}
_OF_PATHS: Final = frozenset({"file", "sqlite"})
_METADATA_STORES: Final = {"oxia": "oxia://host:6648/namespace", "sqlite": "sqlite:////path", _MEMORY: "memory://"}
_SECRETS: Final = re.compile(r"(?<=://)[^/@\s]*(?=@)|(?<=[?&]token=)[^&\s\"]*")

Q = TypeVar("Q", int, timedelta)


class OutOfRangeError(ValueError):
    """The value is well written but not allowed; the message names the bounds, the reader wants the default, too."""


@dataclass(frozen=True, slots=True)
class Notation:
    """`parse` raises ValueError with a phrase; `show` is its inverse. Belongs in a field's `Annotated` type."""

    name: str
    parse: Callable[[object], Any]
    show: Callable[[Any], str] = str


def parse_duration(value: object) -> timedelta:
    """`250ms`, `5s`, `1.5h`; a number alone has no meaning but 0."""
    if isinstance(value, timedelta):
        return value
    number, unit = _number_and_unit(value, "is not a duration: write for example 250ms, 5s or 10m")
    if not unit and number > 0:
        raise ValueError(f"needs a unit: write for example {value}ms or {value}s")
    if unit and unit not in _MICROSECONDS:
        raise ValueError(f"has an unknown unit {unit!r}: use {', '.join(reversed(_MICROSECONDS))}")
    microseconds = _whole(number * _MICROSECONDS[unit or "ms"], "is finer than a microsecond")
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError:
        raise ValueError("is longer than any clock runs") from None


def show_duration(value: timedelta) -> str:
    microseconds = value // timedelta(microseconds=1)
    for unit, size in _MICROSECONDS.items():
        if microseconds and microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds // 1000}.{microseconds % 1000:03}".rstrip("0").rstrip(".") + "ms"


def parse_size(value: object) -> int:
    """Bytes: `8MiB`, `100kB`, or a number."""
    number, unit = _number_and_unit(value, "is not a size: write for example 64KiB or 8MiB")
    if unit and unit not in _BYTES:
        raise ValueError(f"has an unknown unit {unit!r}: use {', '.join(_BYTES)}")
    return _whole(number * _BYTES[unit or "B"], "is not a whole number of bytes")


def show_size(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B"


def duration(*, minimum: str, maximum: str) -> Notation:
    lowest, highest, bounds = parse_duration(minimum), parse_duration(maximum), f"{minimum} and {maximum}"
    return Notation("duration", lambda value: _within(parse_duration(value), lowest, highest, bounds), show_duration)


def size(*, minimum: str, maximum: str) -> Notation:
    lowest, highest, bounds = parse_size(minimum), parse_size(maximum), f"{minimum} and {maximum}"
    return Notation("size", lambda value: _within(parse_size(value), lowest, highest, bounds), show_size)


def size_or_none(*, minimum: str, maximum: str) -> Notation:
    given = size(minimum=minimum, maximum=maximum)
    return Notation(
        given.name,
        lambda value: None if value in (None, "") else given.parse(value),
        lambda value: "" if value is None else given.show(value),
    )


def count(*, minimum: int, maximum: int) -> Notation:
    return Notation("number", lambda value: _within(_integer(value), minimum, maximum))


def _assigned_or_count(value: object) -> int | None:
    return None if value is None else _within(_integer(value), 0, 2**31 - 1)


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value).strip() or None


def _folder_or_none(value: object) -> str | None:
    text = _text_or_none(value)
    if text is not None and ("://" in text or not text.isprintable()):
        raise ValueError("is not the path of a folder: write for example /var/cache/forebay")
    return text


def _names(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value] if value else []
    names = tuple(name for item in items if (name := str(item).strip().lower()))
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ValueError(f"has {name!r}, which is not the name of a host: write for example broker-1.example.com")
    return names


def _pattern_or_none(value: object) -> str | None:
    text = _text_or_none(value)
    try:
        re.compile(text or "")
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error})") from None
    return text


def _dollars_or_none(value: object) -> float | None:
    text = str(value).strip()
    if value is None or not text:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,10}(\.\d{1,2})?", text):
        raise ValueError("is not an amount of dollars: write for example 250 or 99.50")
    if not 0.01 <= float(text) <= 1_000_000_000:
        raise OutOfRangeError("must be between 0.01 and 1000000000 dollars")
    return float(text)


def _http_url_or_none(value: object) -> str | None:
    text = str(value or "").strip()
    if text and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", text):
        raise ValueError("is not a URL of HTTP: write for example http://127.0.0.1:4318/v1/traces")
    return text or None


def _ratio(value: object) -> float:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"\d(\.\d{1,9})?", text):
        raise ValueError("is not a share: write for example 0.01")
    if float(text) > 1:
        raise OutOfRangeError("must be between 0 and 1")
    return float(text)


def _flag(value: object) -> bool:
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("must be true or false")


def one_of(*words: str) -> Notation:
    def parse(value: object) -> str:
        word = str(value).strip()
        if word not in words:
            raise OutOfRangeError(f"must be one of {', '.join(words)}")
        return word

    return Notation(" | ".join(words), parse)


def some_of(*words: str) -> Notation:
    """One word or several, separated by commas; or a list of them."""

    def parse(value: object) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value] if value else []
        named = {word for item in items if (word := str(item).strip())}
        for word in sorted(named.difference(words)):
            raise OutOfRangeError(f"has {word!r}, which is none of {', '.join(words)}")
        if not named:
            raise OutOfRangeError(f"must name one or more of {', '.join(words)}")
        return tuple(word for word in words if word in named)

    return Notation(",".join(words), parse, ",".join)


def _labels(value: object) -> tuple[tuple[str, str], ...]:
    """`name=value` pairs, separated by commas; or a list of them."""
    if value is None or isinstance(value, str):
        pairs: list[object] = list((value or "").split(","))
    elif isinstance(value, list | tuple):
        pairs = list(value)
    else:
        raise ValueError(_LABELS_COMPLAINT)
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, text = ("=".join(pair) if isinstance(pair, tuple) else str(pair)).partition("=")
        name, text = name.strip(), text.strip()
        if not (separator or name):
            continue
        if not separator or not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise ValueError(_LABELS_COMPLAINT)
        if name in found:
            raise ValueError(f"names the label {name} twice")
        if len(text) > LABEL_CHARS_MAX or not text.isprintable():
            raise ValueError(f"must give {name} at most {LABEL_CHARS_MAX} printable characters")
        found[name] = text
    if len(found) > LABELS_MAX:
        raise ValueError(f"must name at most {LABELS_MAX} labels")
    return tuple(found.items())


ASSIGNED_OR_COUNT: Final = Notation("number", _assigned_or_count, lambda value: "" if value is None else str(value))
TEXT_OR_NONE: Final = Notation("text", _text_or_none, lambda value: value or "")
FOLDER_OR_NONE: Final = Notation("path", _folder_or_none, lambda value: value or "")
NAMES: Final = Notation("names", _names, ",".join)
LABELS: Final = Notation("name=value,...", _labels, lambda value: ",".join(f"{name}={text}" for name, text in value))
PATTERN_OR_NONE: Final = Notation("regular expression", _pattern_or_none, lambda value: value or "")
DOLLARS_OR_NONE: Final = Notation("dollars", _dollars_or_none, lambda value: "" if value is None else f"{value:.2f}".removesuffix(".00"))
HTTP_URL_OR_NONE: Final = Notation("URL", _http_url_or_none, lambda value: value or "")
RATIO: Final = Notation("0 to 1", _ratio, lambda value: f"{value:.9f}".rstrip("0").rstrip("."))
FLAG: Final = Notation("true | false", _flag, lambda value: "true" if value else "false")


class Listener(NamedTuple):
    """An address clients may use. `port` 0 means the port the system assigns when the listener is bound."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{bracketed(self.host)}:{self.port}"


class HttpAddress(NamedTuple):
    """Where the HTTP server listens; `port` 0 as above."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """An IPv6 address as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def is_wildcard(host: str) -> bool:
    """Whether `host` means every address of the machine: good to listen on, useless to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_listeners(value: object) -> tuple[Listener, ...]:
    """An empty host means every address, as in Kafka."""
    listeners = tuple(_listener(text) for text in _items(value))
    if not listeners:
        raise ValueError("names no listener: write for example PLAINTEXT://127.0.0.1:9092")
    names = [listener.name for listener in listeners]
    bound = [listener[1:] for listener in listeners if listener.port]
    for listener in listeners:
        if names.count(listener.name) > 1:
            raise ValueError(f"has two listeners named {listener.name}: give each its own name, e.g. INTERNAL and EXTERNAL")
        if bound.count(listener[1:]) > 1:
            raise ValueError(f"has two listeners on {bracketed(listener.host)}:{listener.port}: give each its own port")
    return listeners


def parse_advertised_listeners(value: object) -> tuple[Listener, ...]:
    """The addresses that clients connect to; empty: derived from the listeners."""
    if not _items(value):
        return ()
    listeners = parse_listeners(value)
    for listener in listeners:
        if is_wildcard(listener.host):
            example = Listener(listener.name, "broker-1", listener.port or 9092)
            unreachable = f"has host {listener.host}: clients cannot connect to that"
            raise ValueError(f"{unreachable}. Set a name clients can resolve, e.g. {example}")
    return listeners


def advertised_for(listeners: Sequence[Listener], *, hostname: str) -> tuple[Listener, ...]:
    """The default advertised addresses: the listeners, with this machine's name where they mean every address."""
    return tuple(listener._replace(host=hostname) if is_wildcard(listener.host) else listener for listener in listeners)


def parse_address(value: object) -> HttpAddress:
    if isinstance(value, HttpAddress):
        return value
    match = _ADDRESS.fullmatch(str(value).strip())
    if match is None or int(match[2]) > _PORT_MAX:
        raise ValueError("is not an address: write host:port, e.g. 127.0.0.1:8070")
    return HttpAddress(match[1].strip("[]"), int(match[2]))


def _show(listeners: Sequence[Listener]) -> str:
    return ",".join(str(listener) for listener in listeners)


LISTENERS: Final = Notation("listeners", parse_listeners, _show)
ADVERTISED_LISTENERS: Final = Notation("listeners", parse_advertised_listeners, _show)
ADDRESS: Final = Notation("host:port", parse_address)
ADDRESS_OR_NONE: Final = Notation(
    "host:port", lambda value: None if value in (None, "") else parse_address(value), lambda value: "" if value is None else str(value)
)


def without_secrets(text: str) -> str:
    """What is refused in a URL is shown to people, and kept in logs: not what does not belong there."""
    return _SECRETS.sub("***", text)


def scheme_of(url: str) -> str:
    return url.partition("://")[0]


def is_memory(url: str) -> bool:
    """Whether the store forgets everything when the process ends."""
    return scheme_of(url) == _MEMORY


def is_shared(url: str) -> bool:
    """Whether the store is a service, which others use at the same time."""
    return not (is_memory(url) or has_path(url))


def parse_storage_url(value: object) -> str:
    url = _checked(value, _OBJECT_STORES)
    match scheme_of(url):
        case "s3":
            parse_s3_url(url)
        case "file":
            _check_path(url, url.removeprefix("file://"), ("/", "./", "../"), "file://./path (relative) or file:///path (absolute)")
    return url


def parse_metadata_url(value: object) -> str:
    url = _checked(value, _METADATA_STORES)
    match scheme_of(url):
        case "oxia":
            parse_oxia_url(url)
        case "sqlite":
            _check_path(url, url.removeprefix("sqlite://"), ("/",), "sqlite:///./path (relative) or sqlite:////path (absolute)")
    return url


def has_path(url: str) -> bool:
    """Whether the store is a file or folder of this machine."""
    return scheme_of(url) in _OF_PATHS


def path_of(url: str) -> Path:
    """The file or folder a file:// or sqlite:// URL names, relative to the working directory if it is written so."""
    assert has_path(url), f"names no file: {url!r}"
    scheme, _, rest = url.partition("://")
    return Path(rest.removeprefix("/") if scheme == "sqlite" else rest)


STORAGE_URL: Final = Notation("URL", parse_storage_url)
METADATA_URL: Final = Notation("URL", parse_metadata_url)


def _number_and_unit(value: object, complaint: str) -> tuple[Fraction, str]:
    match = _NUMBER_AND_UNIT.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise ValueError(complaint)
    return Fraction(match[1]), match[2]


def _whole(number: Fraction, complaint: str) -> int:
    if number.denominator != 1:
        raise ValueError(complaint)
    return number.numerator


def _integer(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d{1,19}", str(value).strip()):
        raise ValueError("must be a whole number")
    return int(str(value))


def _within(value: Q, lowest: Q, highest: Q, bounds: str = "") -> Q:
    if not lowest <= value <= highest:
        raise OutOfRangeError(f"must be between {bounds or f'{lowest} and {highest}'}")
    return value


def _items(value: object) -> list[object]:
    if isinstance(value, str):
        return [text.strip() for text in value.split(",") if text.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _listener(value: object) -> Listener:
    if isinstance(value, Listener):
        return value
    text = str(value).strip()
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[3]) > _PORT_MAX:
        raise ValueError(f"has {text!r}: not a listener. Expected NAME://host:port, e.g. PLAINTEXT://127.0.0.1:9092")
    name = match[1].upper()
    if _SECURED.search(name):
        raise ValueError(f"names {name}: not supported. This release speaks plaintext only, and says so rather than pretend")
    if name == HTTP:
        raise ValueError(f"names {name}: that is the name of the HTTP API's address. Give the listener another, e.g. INTERNAL")
    return Listener(name, match[2].strip("[]") or "0.0.0.0", int(match[3]))  # noqa: S104


def _checked(value: object, known: Mapping[str, str]) -> str:
    url = str(value).strip()
    expected = f"Expected {_either(list(known.values()))}"
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f'missing "://". {expected}')
    if scheme not in known:
        raise ValueError(f"unknown scheme {scheme}://. {expected}")
    if scheme == _MEMORY and rest:
        raise ValueError("takes nothing after memory://")
    if scheme != _MEMORY and not rest.strip("/"):
        raise ValueError(f"names nothing after {scheme}://. {expected}")
    return url


def _check_path(url: str, path: str, beginnings: tuple[str, ...], expected: str) -> None:
    if not path.startswith(beginnings):
        raise ValueError(f"names a host: write {expected}")
    if "?" in url or "#" in url:
        raise ValueError("takes no parameters")


def _either(forms: list[str]) -> str:
    return f"{', '.join(forms[:-1])} or {forms[-1]}"
