"""Where the stores are: the URLs this release can open. Others are refused here, before anything is touched."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.settings.notation import Notation

_MEMORY: Final = "memory"
_OBJECT_STORES: Final = {"file": "file://./path, file:///path", _MEMORY: "memory://"}
_OBJECT_STORES_NOT_YET: Final = {"s3": "this release has no S3 store yet. Use file:///path"}
_METADATA_STORES: Final = {"sqlite": "sqlite:///./path, sqlite:////path", _MEMORY: "memory://"}
_METADATA_STORES_NOT_YET: Final = {"oxia": "this release has no Oxia client yet. Use sqlite:////path"}


def scheme_of(url: str) -> str:
    return url.partition("://")[0]


def is_memory(url: str) -> bool:
    """Whether the store forgets everything when the process ends."""
    return scheme_of(url) == _MEMORY


def parse_storage_url(value: object) -> str:
    url = _checked(value, _OBJECT_STORES, _OBJECT_STORES_NOT_YET)
    if scheme_of(url) == "file" and not url.removeprefix("file://").startswith(("/", "./", "../")):
        raise ValueError("names a host: write file://./path (relative) or file:///path (absolute)")
    return url


def parse_metadata_url(value: object) -> str:
    url = _checked(value, _METADATA_STORES, _METADATA_STORES_NOT_YET)
    if scheme_of(url) == "sqlite" and not url.removeprefix("sqlite://").startswith("/"):
        raise ValueError("names a host: write sqlite:///./path (relative) or sqlite:////path (absolute)")
    return url


def path_of(url: str) -> Path:
    """The file or folder a file:// or sqlite:// URL names, relative to the working directory if it is written so."""
    scheme, _, rest = url.partition("://")
    return Path(rest.removeprefix("/") if scheme == "sqlite" else rest)


def _checked(value: object, known: Mapping[str, str], not_yet: Mapping[str, str]) -> str:
    url = str(value).strip()
    expected = f"Expected {' or '.join(known.values())}"
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f'missing "://". {expected}')
    if scheme in not_yet:
        raise ValueError(not_yet[scheme])
    if scheme not in known:
        raise ValueError(f"unknown scheme {scheme}://. {expected}")
    if scheme == _MEMORY and rest:
        raise ValueError("takes nothing after memory://")
    if scheme != _MEMORY and not rest.strip("/"):
        raise ValueError(f"names no path. {expected}")
    if "?" in rest or "#" in rest:
        raise ValueError("takes no parameters")
    return url


STORAGE_URL: Final = Notation("URL", parse_storage_url)
METADATA_URL: Final = Notation("URL", parse_metadata_url)
