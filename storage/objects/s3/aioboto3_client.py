"""Both sides by aioboto3: all that obstore does not do, and record bytes, too, where `storage.s3_client` says so.

Only this module knows aioboto3, aiobotocore and botocore. Importing them takes 0.8 s of CPU, and their description of S3 is parsed
when a client is made, so both happen in a thread at the first request, and not at the start of a broker that does not need them.
"""

import asyncio
import base64
import contextlib
import hashlib
import importlib
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import aiohttp
import crc32c

from runtime.blocking import ThreadBlocking
from runtime.clock import Clock
from storage.objects.port import ObjectStat, UnfinishedUpload
from storage.objects.requests import RequestMeter, attempted
from storage.objects.s3.client import (
    CONNECT_S_MAX,
    CONNECTIONS_MAX,
    DEFAULT_LIMITS,
    REQUEST_S_MAX,
    USER_AGENT,
    ListedPage,
    S3Limits,
    UndeletedKey,
    UploadsPage,
    user_agent,
)
from storage.objects.s3.credentials import NO_CREDENTIALS, Credentials, CredentialSource, source_of
from storage.objects.s3.endpoint import BucketEndpoint, Proxies, client_context, untrusted_of
from storage.objects.s3.faults import ErrorReply, Interrupted, NoCredentials, RequestFault, Unreached, error_reply
from storage.objects.s3.metering import tracing
from storage.recordbatch import in_parts
from storage.vocabulary import Buffer

DELETES_AT_ONCE: Final = 16
"""Where a server deletes one object at a time."""


class Aioboto3Client:
    """A `DataClient` and a `ControlClient`. All its requests belong to the loop of its first one."""

    def __init__(
        self,
        endpoint: BucketEndpoint,
        *,
        credentials: CredentialSource,
        meter: RequestMeter,
        run: str = "",
        limits: S3Limits = DEFAULT_LIMITS,
    ) -> None:
        """`run` names this process in each request."""
        self._page_objects = limits.page_objects
        self._meter = meter
        self._user_agent = user_agent(run)
        self._trace: aiohttp.TraceConfig | None = None
        self._endpoint = endpoint
        self._credentials = credentials
        self._blocking = ThreadBlocking(threads=1, name="s3-sdk")
        self._closing = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._session: Any = None
        self._tls: ssl.SSLContext | bool = True
        self._s3: Any = None
        self._takes_checksum: bool | None = None
        """Whether the server takes x-amz-checksum-crc32c, or Content-MD5 alone; None while no put has shown it."""
        self._deletes_many = True

    # Record bytes

    async def put_if_absent(self, name: str, parts: Sequence[Buffer]) -> None:
        client = await self._opened()
        body = b"".join(parts)

        async def put(**checksum: str) -> None:
            with _translated():
                reply = await client.put_object(**self._of(name), Body=body, IfNoneMatch="*", **checksum)
                _ = reply["ETag"]  # a success that names no object is none of S3's
            self._meter.stored(len(body))

        if self._takes_checksum is not False:
            try:
                await put(ChecksumCRC32C=_checksum(body))
                self._takes_checksum = True
                return
            except ErrorReply as refused:
                if self._takes_checksum or not refused.may_be_about_a_header:
                    raise
        # As old as S3, and checked by every server, but dearer.
        md5 = await self._blocking.run(partial(_md5, body))
        with attempted("first" if self._takes_checksum is False else "retry"):
            await put(ContentMD5=md5)
        self._takes_checksum = False

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        client = await self._opened()
        with _translated():
            reply = await client.get_object(**self._of(name), Range=f"bytes={start}-{end - 1}")
            async with reply["Body"] as body:
                if reply["ResponseMetadata"]["HTTPStatusCode"] != 206:
                    raise ErrorReply(200, "", "a whole object, or something else, where a range was asked for")
                if not reply["ContentRange"].startswith(f"bytes {start}-"):
                    raise ValueError(f"bytes {start}-{end - 1} were asked for: content_range={reply['ContentRange']!r}")
                found: bytes = await body.read()
        self._meter.read(len(found))
        return found

    async def get_parts(self, name: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        return in_parts(await self.get_range(name, start, end), start, part_bytes)

    async def head(self, name: str) -> ObjectStat:
        client = await self._opened()
        with _translated():
            reply = await client.head_object(**self._of(name))
            return ObjectStat(name, reply["ContentLength"], _whole_seconds_ms(reply["LastModified"]))

    # Control

    async def list_page(self, prefix: str, start_after: str) -> ListedPage:
        client = await self._opened()
        asked = {"Bucket": self._endpoint.bucket, "Prefix": prefix, "MaxKeys": self._page_objects}
        if start_after:
            asked["StartAfter"] = start_after
        with _translated():
            reply = await client.list_objects_v2(**asked)
            stats = [ObjectStat(one["Key"], one["Size"], _whole_seconds_ms(one["LastModified"])) for one in reply.get("Contents", ())]
            return ListedPage(stats, bool(reply["IsTruncated"]))

    async def delete(self, names: Sequence[str]) -> Sequence[UndeletedKey]:
        client = await self._opened()
        if not self._deletes_many:
            return await self._delete_one_by_one(client, names)
        delete = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        try:
            with _translated():
                reply = await client.delete_objects(Bucket=self._endpoint.bucket, Delete=delete)
        except ErrorReply as refused:
            if not (refused.is_not_implemented or refused.status == 405):
                raise
            undeleted = await self._delete_one_by_one(client, names)
            self._deletes_many = False
            return undeleted
        return [UndeletedKey(one.get("Key", ""), one.get("Code", ""), one.get("Message", "")) for one in reply.get("Errors", ())]

    async def _delete_one_by_one(self, client: Any, names: Sequence[str]) -> Sequence[UndeletedKey]:
        left = iter(names)

        async def work() -> None:
            for name in left:
                with _translated():
                    await client.delete_object(**self._of(name))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETES_AT_ONCE, len(names))):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return ()

    async def begin_upload(self, name: str) -> str:
        client = await self._opened()
        with _translated():
            reply = await client.create_multipart_upload(**self._of(name))
            return str(reply["UploadId"])

    async def put_part(self, name: str, upload: str, number: int, body: Buffer) -> str:
        client = await self._opened()
        md5 = await self._blocking.run(partial(_md5, body))
        with _translated():
            reply = await client.upload_part(**self._of(name), UploadId=upload, PartNumber=number, Body=bytes(body), ContentMD5=md5)
            etag = str(reply["ETag"])
        self._meter.stored(len(body))
        return etag

    async def finish_upload(self, name: str, upload: str, etags: Sequence[str]) -> None:
        client = await self._opened()
        parts = [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(etags, start=1)]
        with _translated():
            reply = await client.complete_multipart_upload(
                **self._of(name), UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
            # S3 sends the 200 before it has done the work: an answer that ends there says nothing.
            _ = reply["ETag"]

    async def abort_upload(self, name: str, upload: str) -> None:
        client = await self._opened()
        with _translated():
            await client.abort_multipart_upload(**self._of(name), UploadId=upload)

    async def uploads_page(self, prefix: str, start_after: str) -> UploadsPage:
        client = await self._opened()
        asked = {"Bucket": self._endpoint.bucket, "Prefix": prefix, "MaxUploads": self._page_objects}
        if start_after:
            asked["KeyMarker"] = start_after
        with _translated():
            reply = await client.list_multipart_uploads(**asked)
            uploads = [
                UnfinishedUpload(one["Key"], one["UploadId"], _whole_seconds_ms(one["Initiated"])) for one in reply.get("Uploads", ())
            ]
            return UploadsPage(uploads, bool(reply["IsTruncated"]))

    # Identity

    async def caller(self) -> str:
        await self._loaded()
        config = _config(self._endpoint, self._tls, connect_timeout=2, read_timeout=2)
        with _translated():
            async with self._session.client("sts", region_name=self._endpoint.region, config=config) as client:
                return str((await client.get_caller_identity())["Arn"])

    async def bucket_region(self) -> str:
        client = await self._opened()
        try:
            with _translated():
                reply = await client.head_bucket(Bucket=self._endpoint.bucket)
        except ErrorReply as refused:
            return refused.region
        return str(reply["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", ""))

    async def keeps_versions(self) -> bool:
        """Whether the bucket keeps what is deleted as a version. Raises `RequestFault`, also where that may not be asked."""
        client = await self._opened()
        with _translated():
            reply = await client.get_bucket_versioning(Bucket=self._endpoint.bucket)
        return str(reply.get("Status", "")) == "Enabled"

    async def close(self) -> None:
        await self._closing.aclose()
        self._blocking.close()

    # Opening

    async def _loaded(self) -> None:
        """Import, and parse the description of S3, off the loop."""
        async with self._opening:
            if self._session is None:
                self._session, self._tls = await self._blocking.run(partial(_load, self._endpoint, self._credentials))
                self._trace = tracing(self._meter, bucket=self._endpoint.bucket, path_style=self._endpoint.path_style)

    async def _opened(self) -> Any:
        if self._s3 is None:
            await self._loaded()
            async with self._opening:
                if self._s3 is None:
                    with _translated():
                        self._s3 = await self._closing.enter_async_context(
                            self._session.client(
                                "s3",
                                region_name=self._endpoint.region,
                                endpoint_url=self._endpoint.url,
                                config=_config(self._endpoint, self._tls, user_agent=self._user_agent, trace=self._trace),
                            )
                        )
                        self._s3.meta.events.register("before-call.s3.DeleteObjects", _with_md5)
        return self._s3

    def _of(self, name: str) -> dict[str, str]:
        return {"Bucket": self._endpoint.bucket, "Key": name}


def credentials_for(
    endpoint: BucketEndpoint, environment: Mapping[str, str], *, clock: Clock, limits: S3Limits = DEFAULT_LIMITS
) -> CredentialSource:
    """Credentials of the environment, else what botocore finds. Looks nowhere before the first request."""
    find = partial(find_credentials, endpoint, environment, timeout_s=limits.credentials_timeout_s)
    return CredentialSource(find, environment=environment, clock=clock, limits=limits)


def find_credentials(
    endpoint: BucketEndpoint, environment: Mapping[str, str], *, timeout_s: float = DEFAULT_LIMITS.credentials_timeout_s
) -> Credentials:
    """Search every source that botocore knows, reading all files again. Blocks: call it in a thread. Raise `NoCredentials`."""
    try:
        with _translated(), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            return runner.run(_find_credentials(endpoint, environment, timeout_s=timeout_s))
    except NoCredentials:
        raise
    except RequestFault as fault:
        raise NoCredentials(f"S3 credentials could not be got: {fault}") from fault


async def _find_credentials(endpoint: BucketEndpoint, environment: Mapping[str, str], *, timeout_s: float) -> Credentials:
    session = importlib.import_module("aiobotocore.session").AioSession()
    session.set_config_variable("region", endpoint.region)
    tls = client_context(endpoint.ca)
    session.set_default_client_config(_config(endpoint, tls, read_timeout=CONNECT_S_MAX, attempts_max=3))
    started: list[asyncio.subprocess.Process] = []

    async def popen(*command: str, **streams: Any) -> asyncio.subprocess.Process:
        started.append(await asyncio.create_subprocess_exec(*command, **streams))
        return started[-1]

    resolver = importlib.import_module("aiobotocore.credentials").create_credential_resolver(session, region_name=endpoint.region)
    for provider in resolver.providers:
        if hasattr(provider, "_popen"):
            provider._popen = popen  # noqa: SLF001
        if (fetcher := getattr(provider, "_role_fetcher", None)) is not None:
            # The address of a machine's own role is another machine's to a proxy.
            fetcher._session = type(fetcher._session)(timeout=fetcher._timeout)  # noqa: SLF001
    try:
        async with asyncio.timeout(timeout_s):
            found = await resolver.load_credentials()
            if found is None:
                raise NoCredentials(NO_CREDENTIALS)
            frozen = await found.get_frozen_credentials()
    except TimeoutError as error:
        raise NoCredentials(f"S3 credentials could not be got: no answer in {timeout_s:g} s from where they are looked for") from error
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()
    expiry = getattr(found, "_expiry_time", None)
    source = source_of(str(found.method), environment)
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token, expiry and expiry.timestamp(), source)


def _signing_with(credentials: CredentialSource) -> Any:
    """What aiobotocore signs with: `credentials`, asked for before each request."""
    library = importlib.import_module("aiobotocore.credentials")
    parent: type = library.AioCredentials

    class Signing(parent):  # type: ignore[misc]
        async def get_frozen_credentials(self) -> Any:
            found = await credentials.current()
            return library.ReadOnlyCredentials(found.access_key, found.secret_key, found.token)

    return Signing("", "")


def _load(endpoint: BucketEndpoint, credentials: CredentialSource) -> tuple[Any, ssl.SSLContext | bool]:
    with _translated():
        session = importlib.import_module("aioboto3").Session(region_name=endpoint.region)
        importlib.import_module("aiobotocore.httpsession")
        session._session._credentials = _signing_with(credentials)  # noqa: SLF001
        # Read here and kept by the session, so that making a client on the loop finds them there.
        session._session.get_component("data_loader").load_service_model("s3", "service-2")  # noqa: SLF001
        slow = importlib.import_module("botocore.utils").parse_timestamp
        session._session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=partial(_moment, slow))  # noqa: SLF001
    return session, client_context(endpoint.ca) if endpoint.is_https else True


def _config(
    endpoint: BucketEndpoint,
    tls: ssl.SSLContext | bool,
    *,
    connect_timeout: float = CONNECT_S_MAX,
    read_timeout: float = REQUEST_S_MAX,
    attempts_max: int = 1,
    user_agent: str = USER_AGENT,
    trace: aiohttp.TraceConfig | None = None,
) -> Any:
    parent: type = importlib.import_module("aiobotocore.config").AioConfig

    class Config(parent):  # type: ignore[misc]
        def merge(self, other: Any) -> Any:
            """As the parent, which forgets the class of the session: of clients that ask for credentials as well."""
            merged = super().merge(other)
            merged.http_session_cls = self.http_session_cls
            return merged

    return Config(
        http_session_cls=_http_session_class(endpoint, tls, trace),
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        max_pool_connections=CONNECTIONS_MAX,
        retries={"total_max_attempts": attempts_max},
        # The defaults hash each body twice more, on the loop: 1.1 s per GiB instead of 0.3 s.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint.path_style else "virtual"},
        user_agent_extra=user_agent,
    )


def _http_session_class(endpoint: BucketEndpoint, tls: ssl.SSLContext | bool, trace: aiohttp.TraceConfig | None) -> type:
    parent: type = importlib.import_module("aiobotocore.httpsession").AIOHTTPSession
    configuration: type = importlib.import_module("botocore.httpsession").ProxyConfiguration

    class Routed(configuration):  # type: ignore[misc]
        """The proxies that the other client takes."""

        def __init__(self, proxies: Proxies) -> None:
            super().__init__()
            self._by_url = proxies

        def proxy_url_for(self, url: str) -> str | None:
            return self._by_url.route(url).proxy

    class OneWaySession(parent):  # type: ignore[misc]
        """Trusts whom the other client trusts, takes the same proxies, and sends a request once."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._proxy_config = Routed(endpoint.proxies)

        def _create_connector(self, proxy_url: str | None) -> Any:  # noqa: ARG002
            # The parent's verifies nothing behind a proxy.
            return aiohttp.TCPConnector(limit=self._max_pool_connections, ssl=tls, **self._connector_args)

        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            # aiohttp sends a PUT again when a kept-alive connection breaks: the second one meets the first one's object and gets 412.
            session._retry_connection = False  # noqa: SLF001
            if trace is not None and trace not in session.trace_configs:
                trace.freeze()
                session.trace_configs.append(trace)
            return session

    return OneWaySession


def _with_md5(params: dict[str, Any], **_: Any) -> None:
    """Give DeleteObjects the checksum that every server knows, and no other: some want this one, and some refuse newer ones."""
    params["headers"]["Content-MD5"] = _md5(params["body"])
    params["context"].pop("checksum", None)


def _checksum(body: bytes) -> str:
    return base64.b64encode(crc32c.crc32c(body).to_bytes(4, "big")).decode()


def _md5(body: Buffer) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _moment(parse: Callable[[Any], datetime], text: Any) -> datetime:
    """What `parse`, botocore's, makes of it, which takes 0.1 ms for each object of a listing."""
    try:
        if text[10] == "T":
            return datetime.fromisoformat(text)
    except (TypeError, ValueError, IndexError):
        pass
    return parse(text)


def _whole_seconds_ms(moment: Any) -> int:
    """Servers list fractions of a second that they do not tell of a single object."""
    return int(moment.timestamp()) * 1_000


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """botocore's exceptions as the faults that `faults.py` lists."""
    exceptions = importlib.import_module("botocore.exceptions")
    parser_error = importlib.import_module("botocore.parsers").ResponseParserError
    try:
        yield
    except exceptions.ClientError as error:
        raise _refused(error.response) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.ProfileNotFound,
        exceptions.ConfigNotFound,
        exceptions.ConfigParseError,
        exceptions.CredentialRetrievalError,
        exceptions.SSOError,
        exceptions.InvalidConfigError,
        exceptions.InfiniteLoopConfigError,
        exceptions.UnauthorizedSSOTokenError,
    ) as error:
        raise NoCredentials(f"S3 credentials could not be got: {' '.join(str(error).split())}") from error
    except (exceptions.BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _without_reply(error) from error
    except (ValueError, KeyError, parser_error, RuntimeError) as error:
        # A reply that is not S3's: botocore could not parse it, something is missing in it, or it is sent round in circles by redirects.
        # RuntimeError is also what fresh credentials that are expired already are answered with.
        raise Interrupted(f"the reply is not one of S3: {error!r}") from error


def _refused(response: dict[str, Any]) -> ErrorReply:
    metadata = response.get("ResponseMetadata", {})
    error = {name: str(value) for name, value in response.get("Error", {}).items()}
    if error.get("Code", "").isdigit():
        error["Code"] = ""  # replies without a body have their status as a code
    region = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") or ""
    return error_reply(int(metadata.get("HTTPStatusCode", 0)), error, region=region)


def _without_reply(error: Exception) -> RequestFault:
    cause = getattr(error, "kwargs", {}).get("error", error)
    if (untrusted := untrusted_of(cause)) is not None:
        return untrusted
    detail = " ".join(str(cause).split()) or type(cause).__name__
    if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError):
        return Unreached(detail)
    return Interrupted(detail)
