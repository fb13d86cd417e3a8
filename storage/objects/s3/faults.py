"""What one request to S3 can end in, besides its result. The two clients raise these and nothing else.

Unreached      no connection: nothing was sent
Untrusted      the same, because of the server's certificate
NoCredentials  nothing to sign with: nothing was sent
Interrupted    sent, in part or whole, and no whole reply: it may have happened
AnswerCutShort the same of a request that succeeded: a part of the answer came
ErrorReply     the server answered with an error
"""

import enum
import re
from collections.abc import Mapping
from typing import Final

_CODES_NOT_DONE: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "Busy",
        "XMinioServerNotInitialized",
    }
)
_CODES_OF_CLOCKS: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_CODES_OF_LATE_REQUESTS: Final = frozenset(
    {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest"}
)
"""What arrived was not what was sent (cut short, or bits that fell over): nothing was stored, and another try is in order."""

CODES_OF_REGIONS: Final = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_CODES_OF_HEADERS: Final = frozenset({"", "BadRequest", "InvalidArgument", "InvalidRequest", "NotImplemented", "UnsupportedArgument"})
_CODES_OF_KEYS: Final = frozenset({"InvalidAccessKeyId", "XAdminUserNotFound", "XAdminNoSuchUser"})
_CODES_OF_TOKENS: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidTokenId", "TokenRefreshRequired", "InvalidClientTokenId"}
)

_TAG: Final = {name: re.compile(rf"<{name}>([^<]{{0,2000}})</{name}>") for name in ("Code", "Message", "Region", "Header")}
_CHECKSUM: Final = re.compile(r"checksum|crc-?(?:32|64)|content-?md5", re.IGNORECASE)
_CONDITION: Final = re.compile(r"if-(?:none-)?match|condition", re.IGNORECASE)


class CertificateFlaw(enum.Enum):
    """What is wrong with a server's certificate, and the fix."""

    EXPIRED = "the server's certificate has expired: renew it there, and see that this machine's clock is right"
    NOT_YET_VALID = "the server's certificate is not valid yet: see that this machine's clock is right"
    OTHER_NAME = "the server's certificate is for another name: call the server by its name in storage.url, or have one made for this name"
    UNKNOWN_AUTHORITY = "the server's certificate is not signed by an authority that is trusted: name its file by ca_file in storage.url"
    INCOMPLETE = "the server's chain of certificates is incomplete: let the server send the ones between its own and the authority's"
    OF_AN_AUTHORITY = (
        "the server shows the certificate of an authority as its own, which obstore does not take: have one signed by it, "
        "or set storage.s3_client=aioboto3"
    )
    OTHER = "the server's certificate is not accepted"


class RequestFault(Exception):
    """One of the leaves below; never raised itself."""


class Unreached(RequestFault):
    """No connection: nothing was sent."""


class Untrusted(Unreached):
    """The server's certificate is not accepted: no request was sent. Renewed by hand there, it holds at once: worth another try."""

    def __init__(self, flaw: CertificateFlaw, detail: str) -> None:
        super().__init__(f"{flaw.value} ({detail})" if flaw is CertificateFlaw.OTHER and detail else flaw.value)
        self.flaw = flaw


class Interrupted(RequestFault):
    """No whole reply: a write may have happened."""


class AnswerCutShort(Interrupted):
    """The server answered with success, and the body of the answer did not come whole."""


class NoCredentials(RequestFault):
    """There is nothing to sign a request with: nothing was sent."""


class ErrorReply(RequestFault):
    """The server answered with an error. `code` is S3's, or empty where the reply had none (HEAD, or not S3 at all)."""

    def __init__(self, status: int, code: str = "", message: str = "", *, region: str = "") -> None:
        super().__init__(" ".join(filter(None, (str(status), code, message and f"({message})"))))
        self.status = status
        self.code = code
        self.message = message
        self.region = region

    @property
    def is_about_the_clock(self) -> bool:
        """Ours is too far from the server's, which takes no request then."""
        return self.code in _CODES_OF_CLOCKS

    @property
    def is_about_the_key(self) -> bool:
        """The server does not know the access key."""
        return self.code in _CODES_OF_KEYS

    @property
    def is_about_the_token(self) -> bool:
        """The session token has expired or is none of the server's."""
        return self.code in _CODES_OF_TOKENS

    @property
    def is_about_credentials(self) -> bool:
        return self.is_about_the_key or self.is_about_the_token or self.code == "SignatureDoesNotMatch"

    @property
    def may_be_about_credentials(self) -> bool:
        """Some servers say no more of a token that has expired; of a HEAD none does."""
        return self.is_forbidden or (not self.code and self.status in (400, 401, 403))

    @property
    def is_about_a_checksum(self) -> bool:
        """The server refuses the header of a checksum, or wants another."""
        return self.may_be_about_a_header and bool(_CHECKSUM.search(f"{self.code} {self.message}"))

    @property
    def is_about_a_condition(self) -> bool:
        """The server refuses If-None-Match."""
        return self.may_be_about_a_header and bool(_CONDITION.search(f"{self.code} {self.message}"))

    @property
    def may_be_about_a_header(self) -> bool:
        """Another request, without one of its headers, may be taken. Servers often do not say which it was."""
        if self.status != 400 or self.code in _CODES_OF_LATE_REQUESTS:
            return self.is_not_implemented
        told = f"{self.code} {self.message}"
        return self.code in _CODES_OF_HEADERS or bool(_CHECKSUM.search(told) or _CONDITION.search(told))

    @property
    def is_missing(self) -> bool:
        """The object, not the bucket, is absent."""
        return self.status == 404 and self.code == "NoSuchKey"

    @property
    def is_bare_404(self) -> bool:
        """All that a HEAD can say of an absent object; as the answer to a GET it comes from something that is not S3."""
        return self.status == 404 and not self.code

    @property
    def is_taken(self) -> bool:
        """If-None-Match did not hold."""
        return self.status == 412

    @property
    def is_no_upload(self) -> bool:
        """The upload in parts was finished or aborted, or never begun."""
        return self.status == 404 and self.code == "NoSuchUpload"

    @property
    def is_forbidden(self) -> bool:
        """Whoever signed the request lacks a permission."""
        return self.status == 403 and self.code == "AccessDenied"

    @property
    def is_past_the_end(self) -> bool:
        return self.status == 416

    @property
    def is_not_implemented(self) -> bool:
        return self.status == 501 or self.code == "NotImplemented"

    @property
    def is_not_done(self) -> bool:
        """Worth another try, and certainly nothing happened."""
        busy = self.status in (408, 429) or self.code in _CODES_NOT_DONE or self.code in _CODES_OF_LATE_REQUESTS
        # 409 is the answer while another conditional write of the key is under way: S3 asks to send the request again.
        return busy or (self.status == 409 and self.code in ("", "ConditionalRequestConflict", "OperationAborted"))

    @property
    def is_transient(self) -> bool:
        """Worth another try. A write may have happened unless `is_not_done`: some proxies answer 503 for a reply they lost."""
        return self.is_not_done or (self.status >= 500 and self.status != 501)


def error_reply_of(status: int, body: str) -> ErrorReply:
    """The fault that an answer with an error status and `body` (XML, in part, or none) is."""
    found = {name: match[1] for name, pattern in _TAG.items() if (match := pattern.search(body))}
    return error_reply(status, found)


def error_reply(status: int, told: Mapping[str, str], *, region: str = "") -> ErrorReply:
    """The fault that elements of an answer, by their names in S3's XML, are."""
    message = _plain(told.get("Message", ""))
    if (header := told.get("Header", "")) and header.lower() not in message.lower():
        message = f"{message}: {header}"
    return ErrorReply(status, told.get("Code", ""), message, region=told.get("Region") or region)


def _plain(text: str) -> str:
    return " ".join(
        text.replace("&#34;", '"').replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").split()
    )[:300]
