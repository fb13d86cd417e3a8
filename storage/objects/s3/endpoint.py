"""Which server, bucket and region are meant, once the environment has had its say: the same for both clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from storage.objects.s3.location import S3Location
from storage.objects.s3.proxies import NO_PROXIES, Proxies, Route, proxies_of
from storage.objects.s3.tls import CaFile, ca_file_of

REGION_DEFAULT: Final = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEndpoint:
    """`url` is None for AWS itself."""

    bucket: str
    url: str | None
    region: str
    path_style: bool
    ca: CaFile | None = None
    proxies: Proxies = NO_PROXIES

    @property
    def url_of_bucket(self) -> str | None:
        """Where the bucket is addressed by host name this is its own host."""
        if self.url is None or self.path_style:
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.bucket}.{parts.netloc}"

    @property
    def url_of_requests(self) -> str:
        """As `url_of_bucket`, of AWS as well."""
        host = f"s3.{self.region}.amazonaws.com"
        return self.url_of_bucket or f"https://{host if self.path_style else f'{self.bucket}.{host}'}"

    @property
    def route(self) -> Route:
        """The way to the bucket. Raise `Unavailable` if a proxy is named that cannot be used."""
        return self.proxies.route(self.url_of_requests)

    @property
    def is_https(self) -> bool:
        return self.url_of_requests.startswith("https:")

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
        ca=ca_file_of(location.ca_file, environment),
        proxies=proxies_of(environment),
    )
