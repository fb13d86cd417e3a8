"""Where the stores are: the URLs that can be opened. Others are refused here, before anything is touched."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from process.settings.notation import Notation
from storage.metadata.oxia.location import parse_oxia_url
from storage.objects.s3.location import parse_s3_url

_MEMORY: Final = "memory"
_OBJECT_STORES: Final = {"s3": "s3://bucket/prefix", "file": "file:///path", _MEMORY: "memory://"}
_OF_PATHS: Final = frozenset({"file", "sqlite"})
_METADATA_STORES: Final = {"oxia": "oxia://host:6648/namespace", "sqlite": "sqlite:////path", _MEMORY: "memory://"}

_SECRETS: Final = re.compile(r"(?<=://)[^/@\s]*(?=@)|(?<=[?&]token=)[^&\s\"]*")


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


STORAGE_URL: Final = Notation("URL", parse_storage_url)
METADATA_URL: Final = Notation("URL", parse_metadata_url)
