"""Both sides by aioboto3: all that obstore does not do, and record bytes, too, where `storage.s3_client` says so.

Only this module knows aioboto3, aiobotocore and botocore. Importing them takes 0.8 s of CPU, and their description of S3 is parsed
when a client is made, so both happen in a thread at the first request, and not at the start of a broker that does not need them.
"""

import asyncio
import base64
import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import aiohttp
import crc32c

from runtime.blocking import ThreadBlocking
from storage.objects.port import ObjectStat, UnfinishedUpload
from storage.objects.s3.client import (
    CONNECT_S_MAX,
    CONNECTIONS_MAX,
    REQUEST_S_MAX,
    USER_AGENT,
    Credentials,
    ListedPage,
    UndeletedKey,
    UploadsPage,
)
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import ErrorReply, Interrupted, NoCredentials, RequestFault, Unreached
from storage.views import in_parts
from storage.vocabulary import Buffer

LIST_PAGE_OBJECTS: Final = 1_000


class Aioboto3Client:
    """A `DataClient` and a `ControlClient`. All its requests belong to the loop of its first one."""

    def __init__(self, endpoint: BucketEndpoint) -> None:
        self._endpoint = endpoint
        self._blocking = ThreadBlocking(threads=1, name="s3-sdk")
        self._closing = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._session: Any = None
        self._s3: Any = None

    # Record bytes

    async def put_if_absent(self, name: str, parts: Sequence[Buffer]) -> None:
        client = await self._opened()
        body = b"".join(parts)
        with _translated():
            reply = await client.put_object(**self._of(name), Body=body, IfNoneMatch="*", ChecksumCRC32C=_checksum(body))
            _ = reply["ETag"]  # a success that names no object is none of S3's

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
        asked = {"Bucket": self._endpoint.bucket, "Prefix": prefix, "MaxKeys": LIST_PAGE_OBJECTS}
        if start_after:
            asked["StartAfter"] = start_after
        with _translated():
            reply = await client.list_objects_v2(**asked)
            stats = [ObjectStat(one["Key"], one["Size"], _whole_seconds_ms(one["LastModified"])) for one in reply.get("Contents", ())]
            return ListedPage(stats, bool(reply["IsTruncated"]))

    async def delete(self, names: Sequence[str]) -> Sequence[UndeletedKey]:
        client = await self._opened()
        delete = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        with _translated():
            reply = await client.delete_objects(Bucket=self._endpoint.bucket, Delete=delete)
        return [UndeletedKey(one.get("Key", ""), one.get("Code", ""), one.get("Message", "")) for one in reply.get("Errors", ())]

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
            return str(reply["ETag"])

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
        asked = {"Bucket": self._endpoint.bucket, "Prefix": prefix, "MaxUploads": LIST_PAGE_OBJECTS}
        if start_after:
            asked["KeyMarker"] = start_after
        with _translated():
            reply = await client.list_multipart_uploads(**asked)
            uploads = [
                UnfinishedUpload(one["Key"], one["UploadId"], _whole_seconds_ms(one["Initiated"])) for one in reply.get("Uploads", ())
            ]
            return UploadsPage(uploads, bool(reply["IsTruncated"]))

    # Identity

    async def credentials(self) -> Credentials:
        await self._loaded()
        with _translated():
            found = await self._session.get_credentials()
            if found is None:
                raise NoCredentials("no S3 credentials found")
            frozen = await found.get_frozen_credentials()
            expiry = getattr(found, "_expiry_time", None)
            method = str(found.method)
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token, expiry and expiry.timestamp(), method)

    async def caller(self) -> str:
        await self._loaded()
        config = self._config(connect_timeout=2, read_timeout=2)
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
                self._session = await self._blocking.run(partial(_load, self._endpoint.region))

    async def _opened(self) -> Any:
        if self._s3 is None:
            await self._loaded()
            async with self._opening:
                if self._s3 is None:
                    with _translated():
                        self._s3 = await self._closing.enter_async_context(
                            self._session.client(
                                "s3", region_name=self._endpoint.region, endpoint_url=self._endpoint.url, config=self._config()
                            )
                        )
        return self._s3

    def _config(self, *, connect_timeout: float = CONNECT_S_MAX, read_timeout: float = REQUEST_S_MAX) -> Any:
        return importlib.import_module("aiobotocore.config").AioConfig(
            http_session_cls=_http_session_class(),
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_pool_connections=CONNECTIONS_MAX,
            retries={"total_max_attempts": 1},
            # The defaults hash each body twice more, on the loop: 1.1 s per GiB instead of 0.3 s.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": "path" if self._endpoint.path_style else "virtual"},
            user_agent_extra=USER_AGENT,
        )

    def _of(self, name: str) -> dict[str, str]:
        return {"Bucket": self._endpoint.bucket, "Key": name}


def _load(region: str) -> Any:
    with _translated():
        session = importlib.import_module("aioboto3").Session(region_name=region)
        importlib.import_module("aiobotocore.httpsession")
        # Read here and kept by the session, so that making a client on the loop finds them there.
        session._session.get_component("data_loader").load_service_model("s3", "service-2")  # noqa: SLF001
        slow = importlib.import_module("botocore.utils").parse_timestamp
        session._session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=partial(_moment, slow))  # noqa: SLF001
    return session


def _http_session_class() -> type:
    parent: type = importlib.import_module("aiobotocore.httpsession").AIOHTTPSession

    class OnceOnlySession(parent):  # type: ignore[misc]
        """aiohttp sends a PUT again when a kept-alive connection breaks: the second one meets the first one's object and gets 412."""

        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False  # noqa: SLF001
            return session

    return OnceOnlySession


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
    ) as error:
        raise NoCredentials(str(error)) from error
    except (exceptions.BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _without_reply(error) from error
    except (ValueError, KeyError, parser_error, RuntimeError) as error:
        # A reply that is not S3's: botocore could not parse it, something is missing in it, or it is sent round in circles by redirects.
        # RuntimeError is also what fresh credentials that are expired already are answered with.
        raise Interrupted(f"the reply is not one of S3: {error!r}") from error


def _refused(response: dict[str, Any]) -> ErrorReply:
    error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    region = error.get("Region") or metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") or ""
    code = str(error.get("Code", ""))
    # Replies without a body have their status as a code.
    return ErrorReply(int(metadata.get("HTTPStatusCode", 0)), "" if code.isdigit() else code, str(error.get("Message", "")), region=region)


def _without_reply(error: Exception) -> RequestFault:
    cause = getattr(error, "kwargs", {}).get("error", error)
    detail = " ".join(str(cause).split()) or type(cause).__name__
    if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Unreached(detail)
    return Interrupted(detail)
