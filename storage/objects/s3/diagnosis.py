"""Why a probe failed, in one line for the operator: bucket, endpoint, region, identity, and what is missing or wrong."""

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from storage.errors import NotFound, OutcomeUnknown, Unavailable
from storage.objects.s3.client import ControlClient
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import ErrorReply, Interrupted, NoCredentials, RequestFault, Unreached
from storage.objects.s3.location import S3Location

LOOK_UP_S: Final = 5.0
"""For each question asked to name an identity or a region."""

NO_CREDENTIALS: Final = (
    "No S3 credentials found (looked in: environment, ~/.aws, web identity, container and instance role). "
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role."
)

_KEY_CODES: Final = frozenset({"InvalidAccessKeyId", "XAdminUserNotFound", "XAdminNoSuchUser"})
_TOKEN_CODES: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidClientTokenId"})
_REGION_CODES: Final = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)


class ProbeStep(enum.Enum):
    """A request of the probe or of the closer look after it: its description, and the permission it needs."""

    PUT = ("write", "s3:PutObject on {bucket}/{root}*")
    PUT_AGAIN = ("second write", "s3:PutObject on {bucket}/{root}*")
    GET = ("read", "s3:GetObject on {bucket}/{root}*")
    LIST = ("listing", "s3:ListBucket on {bucket}")
    DELETE = ("delete", "s3:DeleteObject on {bucket}/{root}*")
    GET_ABSENT = ("read of an absent object", "s3:ListBucket on {bucket} (without it S3 does not tell missing objects from forbidden ones)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What `explain` knows besides the fault."""

    location: S3Location
    endpoint: BucketEndpoint
    identity: str
    source: str
    """Where the credentials come from; empty if unknown, as `identity`."""
    region_of_bucket: str


class Diagnosis:
    """The result of one probe."""

    def __init__(self, location: S3Location, endpoint: BucketEndpoint, control: ControlClient) -> None:
        self._location = location
        self._endpoint = endpoint
        self._control = control

    @asynccontextmanager
    async def of(self, step: ProbeStep) -> AsyncIterator[None]:
        """Turn what a request of the probe failed with into `Unavailable` with cause and fix. `NotFound` passes where it is expected."""
        try:
            yield
        except (Unavailable, OutcomeUnknown, NotFound) as error:
            cause = error.__cause__
            if isinstance(error, NotFound) and step is ProbeStep.GET_ABSENT:
                raise
            if not isinstance(cause, RequestFault | TimeoutError):
                raise Unavailable(f"{_place(self._location, self._endpoint)} failed a test {step.value[0]}: {error}") from error
            raise Unavailable(await self.explained(step, cause)) from error

    async def explained(self, step: ProbeStep, fault: RequestFault | TimeoutError) -> str:
        """The line for `fault`, after a few questions to the server where they help."""
        identity = source = region = ""
        if isinstance(fault, ErrorReply):
            if _is_about_region(fault):
                region = fault.region or await self._region_of_bucket()
            elif fault.status < 500:
                identity, source = await self._identity()
        facts = Facts(location=self._location, endpoint=self._endpoint, identity=identity, source=source, region_of_bucket=region)
        return " ".join(explain(step, fault, facts).split())

    def no_conditions(self) -> str:
        return _no_conditions(self._location, self._endpoint)

    def other_bytes(self) -> str:
        place = _place(self._location, self._endpoint)
        return f"{place} reads back other bytes than were written to it. Check that endpoint names an S3 server and no cache is before it."

    def still_there(self) -> str:
        return f"{_place(self._location, self._endpoint)} still has an object after its delete. A store must read what was last written."

    async def other_region(self) -> str | None:
        """What to say if the bucket is in another region than was set, as far as the server tells: botocore goes there by itself, with
        a second request for the first of each kind, and obstore does not."""
        actual = await self._region_of_bucket()
        return _other_region(self._location, self._endpoint, actual) if actual not in ("", self._endpoint.region) else None

    async def _identity(self) -> tuple[str, str]:
        try:
            async with asyncio.timeout(LOOK_UP_S):
                found = await self._control.credentials()
        except (RequestFault, TimeoutError):
            return "", ""
        identity = (
            f"access key {found.access_key[:4]}…{found.access_key[-4:]}"
            if len(found.access_key) >= 12
            else f"access key {found.access_key}"
        )
        if self._endpoint.url is None:
            try:
                async with asyncio.timeout(LOOK_UP_S):
                    identity = await self._control.caller()
            except (RequestFault, TimeoutError):
                return identity, found.source
        return identity, found.source

    async def _region_of_bucket(self) -> str:
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await self._control.bucket_region()
        except (RequestFault, TimeoutError):
            return ""


def explain(step: ProbeStep, fault: RequestFault | TimeoutError, facts: Facts) -> str:
    """PURE: one line for a fault of a probe."""
    location, endpoint = facts.location, facts.endpoint
    place, server = _place(location, endpoint), f"S3 at {endpoint.shown}"
    who = f" as {facts.identity}" if facts.identity else ""
    if facts.source:
        who += f" (credentials from: {facts.source})"
    match fault:
        case NoCredentials():
            return NO_CREDENTIALS
        case Unreached():
            return (
                f'Cannot reach {server} for bucket "{location.bucket}" ({fault}). Check endpoint in storage.url, and that the server runs.'
            )
        case Interrupted() | TimeoutError():
            what = "in time" if isinstance(fault, TimeoutError) else f"that is whole ({fault})"
            return f"{place} gave no answer {what} to a test {step.value[0]}. Check that endpoint in storage.url names an S3 server."
        case ErrorReply():
            return _explain_refusal(step, fault, facts, place, who)
        case _:
            return f"{place} failed a test {step.value[0]}: {fault}"


def _explain_refusal(step: ProbeStep, fault: ErrorReply, facts: Facts, place: str, who: str) -> str:
    location, endpoint = facts.location, facts.endpoint
    if _is_about_region(fault):
        if facts.region_of_bucket and facts.region_of_bucket != endpoint.region:
            return _other_region(location, endpoint, facts.region_of_bucket)
        return f"{place} is in another region: {fault}. Set ?region= to the bucket's."
    if fault.code == "NoSuchBucket":
        where = f"at {endpoint.shown} (region {endpoint.region})"
        return f'Bucket "{location.bucket}" does not exist {where}{who}. Create it, or correct storage.url.'
    if fault.code in _KEY_CODES:
        return f"{place} does not know the access key: {fault.code}{who}. Check AWS_ACCESS_KEY_ID."
    if fault.code == "SignatureDoesNotMatch":
        return f"{place} did not accept the signature{who}: the secret key is not that of the access key. Check AWS_SECRET_ACCESS_KEY."
    if fault.code in _TOKEN_CODES:
        return f"{place} did not accept the session token{who}: {fault.code}. Renew the credentials (AWS_SESSION_TOKEN)."
    if fault.is_about_the_clock:
        return f"{place} says that this machine's clock is wrong: {fault}. Set the clock, e.g. by NTP."
    if fault.is_not_implemented:
        return f"{_no_conditions(location, endpoint)} It answered {fault}."
    if fault.status == 429 or fault.status >= 500:
        return f"{place} is busy or failing: {fault}. Try again later."
    if fault.status == 403:
        needs = step.value[1].format(bucket=location.bucket, root=location.root)
        return f"{place} refused a test {step.value[0]}: 403 {fault.code or 'Forbidden'}{who}. Needs {needs}."
    if not fault.code:
        return (
            f"{place} answered a test {step.value[0]} with {fault}, not as S3 does. Check that endpoint in storage.url names an S3 server."
        )
    return f"{place} refused a test {step.value[0]}: {fault}{who}."


def _other_region(location: S3Location, endpoint: BucketEndpoint, actual: str) -> str:
    return f'Bucket "{location.bucket}" is in {actual}, but region {endpoint.region} is set. Use ?region={actual}.'


def _is_about_region(fault: ErrorReply) -> bool:
    return fault.code in _REGION_CODES or fault.status in (301, 307)


def _no_conditions(location: S3Location, endpoint: BucketEndpoint) -> str:
    return (
        f"{_place(location, endpoint)} does not honour If-None-Match: a second writer of a name would replace what is acknowledged. "
        "Use a store with conditional writes (AWS S3, MinIO, Ceph, Versity)."
    )


def _place(location: S3Location, endpoint: BucketEndpoint) -> str:
    return f'Bucket "{location.bucket}" at {endpoint.shown} (region {endpoint.region})'
