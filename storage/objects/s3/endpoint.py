"""Which server, bucket and region are meant, once the environment has had its say: the same for both clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from storage.objects.s3.location import S3Location

REGION_DEFAULT: Final = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEndpoint:
    """`url` is None for AWS itself."""

    bucket: str
    url: str | None
    region: str
    path_style: bool

    @property
    def url_of_bucket(self) -> str | None:
        """Where the bucket is addressed by host name this is its own host."""
        if self.url is None or self.path_style:
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.bucket}.{parts.netloc}"

    @property
    def shown(self) -> str:
        return self.url or "AWS"


def resolve_endpoint(location: S3Location, environment: Mapping[str, str]) -> BucketEndpoint:
    """What the URL says goes before the environment."""

    def first(*names: str) -> str | None:
        return next((environment[name] for name in names if environment.get(name)), None)

    url = location.endpoint or first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return BucketEndpoint(
        bucket=location.bucket,
        url=url and url.rstrip("/"),
        region=location.region or first("AWS_REGION", "AWS_DEFAULT_REGION") or REGION_DEFAULT,
        # Names with dots match no certificate of a host; an endpoint from the environment is one of a store that is not AWS.
        path_style=location.path_style or "." in location.bucket or (location.endpoint is None and url is not None),
    )


def has_keys(environment: Mapping[str, str]) -> bool:
    """Whether credentials are in the environment, where every client finds them by itself."""
    return bool(environment.get("AWS_ACCESS_KEY_ID")) and bool(environment.get("AWS_SECRET_ACCESS_KEY"))
