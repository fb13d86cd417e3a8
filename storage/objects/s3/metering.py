"""HTTP requests as S3 bills them: which kind one is, of which object, and whether its answer is charged for."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Final
from urllib.parse import parse_qs

import aiohttp
from yarl import URL

from storage.objects.requests import RequestAnswer, RequestKind, RequestMeter
from storage.objects.s3.faults import AnswerCutShort, ErrorReply, NoCredentials, RequestFault, Unreached, error_reply_of

_WITH_QUERY: Final[tuple[tuple[str, str, RequestKind], ...]] = (
    ("PUT", "partNumber", "upload_part"),
    ("POST", "uploads", "upload_begin"),
    ("POST", "uploadId", "upload_finish"),
    ("DELETE", "uploadId", "abort"),
    ("POST", "delete", "delete"),
    ("GET", "list-type", "list"),
    ("GET", "uploads", "list"),
)
_WITHOUT: Final[Mapping[str, RequestKind]] = {"PUT": "put", "GET": "get", "HEAD": "head", "DELETE": "delete"}


def kind_of(method: str, query: str, *, is_ranged: bool) -> RequestKind:
    """The kind of a request with this query, as it is in the URL."""
    names = parse_qs(query, keep_blank_values=True)
    for of_method, name, kind in _WITH_QUERY:
        if method == of_method and name in names:
            return kind
    return "ranged_get" if method == "GET" and is_ranged else _WITHOUT.get(method, "get")


def answer_of(fault: RequestFault) -> RequestAnswer | None:
    """How S3 answered a request that failed so; None if it was never sent.

    AWS charges for 4xx except where the login failed, another operation is under way, the upload is gone or the range is not there.
    """
    match fault:
        case Unreached() | NoCredentials():
            return None
        case AnswerCutShort():
            return "2xx"
        case ErrorReply():
            return answer_with(fault)
        case _:
            return "none"


def answer_with(reply: ErrorReply) -> RequestAnswer:
    """The class of an answer that came. A redirection is refused without a charge."""
    if reply.status < 300:  # a success that is not what was asked for
        return "2xx"
    if reply.status >= 500:
        return "5xx"
    is_login = reply.is_about_credentials or reply.is_about_the_clock
    is_free = is_login or reply.is_past_the_end or reply.is_no_upload or reply.code in ("OperationAborted", "InvalidRange")
    return "4xx_free" if is_free or reply.status < 400 else "4xx"


def tracing(meter: RequestMeter, *, bucket: str, path_style: bool) -> aiohttp.TraceConfig:
    """Counts every exchange of an aiohttp session, also a redirected one and one that is given up after it was sent."""
    above = f"/{bucket}/" if path_style else "/"
    trace = aiohttp.TraceConfig()

    def count(method: str, url: URL, headers: Mapping[str, str], answer: RequestAnswer) -> None:
        kind = kind_of(method, url.raw_query_string, is_ranged="Range" in headers)
        meter.count(kind, url.path.removeprefix(above) if url.path.startswith(above) else "", answer)

    async def sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceRequestHeadersSentParams) -> None:
        context.is_sent = True

    async def redirected(_: aiohttp.ClientSession, context: SimpleNamespace, asked: aiohttp.TraceRequestRedirectParams) -> None:
        context.is_sent = False
        count(asked.method, asked.url, asked.headers, "4xx_free")

    async def answered(_: aiohttp.ClientSession, __: SimpleNamespace, asked: aiohttp.TraceRequestEndParams) -> None:
        status, body = asked.response.status, b""
        try:
            if 400 <= status < 500:
                body = await asked.response.read()  # kept, for the next who reads it
        except (aiohttp.ClientError, TimeoutError, OSError):
            return  # whoever reads the answer meets the same error
        finally:
            answer = "2xx" if status < 300 else answer_with(error_reply_of(status, body.decode(errors="replace")))
            count(asked.method, asked.url, asked.headers, answer)

    async def given_up(_: aiohttp.ClientSession, context: SimpleNamespace, asked: aiohttp.TraceRequestExceptionParams) -> None:
        if getattr(context, "is_sent", False):
            count(asked.method, asked.url, asked.headers, "none")

    trace.on_request_headers_sent.append(sent)
    trace.on_request_redirect.append(redirected)
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(given_up)
    return trace
