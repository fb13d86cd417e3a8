"""What one request to S3 can end in, besides its result. The two clients raise these and nothing else.

    Unreached     no connection: nothing was sent
    Interrupted   sent, in part or whole, and no whole reply: it may have happened
    Refused       the server answered with an error

`Throttled` below is a question to a `ErrorReply`, not a fault of its own.
"""

import re
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

_TAG: Final = {name: re.compile(rf"<{name}>([^<]{{0,2000}})</{name}>") for name in ("Code", "Message", "Region")}


class RequestFault(Exception):
    """One of the leaves below; never raised itself."""


class Unreached(RequestFault):
    """No connection: nothing was sent."""


class Interrupted(RequestFault):
    """No whole reply: a write may have happened."""


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
    return ErrorReply(status, found.get("Code", ""), _plain(found.get("Message", "")), region=found.get("Region", ""))


def _plain(text: str) -> str:
    return " ".join(
        text.replace("&#34;", '"').replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").split()
    )[:300]
