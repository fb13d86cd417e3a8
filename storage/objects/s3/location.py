"""Where objects are kept in S3: `s3://bucket/prefix?endpoint=…&region=…&path_style=true&ca_file=…`. Credentials are never part of it."""

import difflib
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from storage.objects.port import is_key

FORM: Final = "s3://bucket/prefix?endpoint=https://host&region=name&path_style=true"
PARAMETERS: Final = ("endpoint", "region", "path_style", "ca_file")
PREFIX_LENGTH_MAX: Final = 400
"""With the longest key (512) and a slash it stays below the 1,024 bytes that S3 allows."""

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A bucket, and the folder in it below which all names are. `prefix` has no slash at its ends and may be empty.

    `endpoint`, `region` and `ca_file`, PEM of authorities, are None where the environment or the defaults decide.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    ca_file: str | None = None

    @property
    def root(self) -> str:
        """The prefix of every key."""
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def parse_s3_url(url: str) -> S3Location:
    """Raise ValueError, with what was expected, if `url` is none.

    Without `path_style` it is true where an endpoint is given and false for AWS, whose buckets are host names.
    """
    # A secret must not end up in a message, so this comes before all messages that show the URL.
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "an s3:// URL takes no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role; "
            f"expected {FORM}"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL ({error}); expected {FORM}") from None
    if parts.scheme != "s3":
        raise ValueError(f"{url!r} does not begin with s3://; expected {FORM}")
    if parts.fragment:
        raise ValueError(f"{url!r} has a part after #; expected {FORM}")
    if port is not None:
        raise ValueError(f"{url!r} has a port after the bucket; a server is named by ?endpoint=http://host:{port}; expected {FORM}")
    if not _BUCKET.match(parts.netloc) or ".." in parts.netloc:
        raise ValueError(f"{parts.netloc!r} in {url!r} is no name of a bucket (3 to 63 of a-z, 0-9, '.' and '-'); expected {FORM}")
    prefix = unquote(parts.path).strip("/")
    if prefix and not (is_key(prefix) and len(prefix) <= PREFIX_LENGTH_MAX):
        raise ValueError(f"{prefix!r} in {url!r} is no prefix (up to {PREFIX_LENGTH_MAX} of A-Z, a-z, 0-9, '.', '_', '-' and '/')")
    parameters = _parse_parameters(url, parts.query)
    endpoint = parameters.get("endpoint")
    return S3Location(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=None if endpoint is None else _parse_endpoint(endpoint),
        region=_parse_region(parameters.get("region")),
        path_style=_parse_path_style(parameters.get("path_style"), endpoint),
        ca_file=parameters.get("ca_file"),
    )


def _parse_parameters(url: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in PARAMETERS:
            nearest = difflib.get_close_matches(name, PARAMETERS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(PARAMETERS)}"
            raise ValueError(f"{name!r} is not a parameter of an s3:// URL: {hint}")
        if name in found:
            raise ValueError(f"{name} is given twice in {url!r}")
        if not value:
            raise ValueError(f"{name} is empty in {url!r}; expected {FORM}")
        found[name] = value
    return found


def _parse_endpoint(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"endpoint={endpoint!r} is no server; expected http://host:port or https://host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("endpoint takes no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"endpoint={endpoint!r} has more than a server; expected http://host:port or https://host")
    return f"{parts.scheme}://{parts.netloc}"


def _parse_region(region: str | None) -> str | None:
    if region is not None and not _REGION.match(region):
        raise ValueError(f"region={region!r} is no name of a region; expected one like us-east-1")
    return region


def _parse_path_style(value: str | None, endpoint: str | None) -> bool:
    if value is None:
        return endpoint is not None
    if value not in _BOOLEANS:
        raise ValueError(f"path_style={value!r}: expected true or false")
    return _BOOLEANS[value]
