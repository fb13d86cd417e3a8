"""Why a probe failed, in one line for the operator: bucket, endpoint, region, identity, and what is missing or wrong."""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from runtime.ids import IdSource
from storage.errors import NotFound, OutcomeUnknown, Unavailable
from storage.objects.s3.client import ControlClient
from storage.objects.s3.credentials import CredentialSource, remedy
from storage.objects.s3.endpoint import BucketEndpoint, describe_certificate
from storage.objects.s3.faults import CODES_OF_REGIONS, ErrorReply, Interrupted, NoCredentials, RequestFault, Unreached, Untrusted
from storage.objects.s3.location import S3Location

LOOK_UP_S: Final = 5.0
"""For each question asked to name an identity or a region."""
OTHERS_PUT_S: Final = 15.0
"""The other client's library is loaded first."""

_OTHER_CLIENT: Final = "Set storage.s3_client=aioboto3, which sends x-amz-checksum-crc32c, or Content-MD5 where that is refused"
_ANOTHER_STORE: Final = "Use a store that does (AWS S3, MinIO, Ceph, Versity)."


class ProbeStep(enum.Enum):
    """A request of the probe or of the closer look after it: its description, the permission it needs, and its name."""

    PUT = ("write", "s3:PutObject on {bucket}/{root}*", "PutObject")
    PUT_AGAIN = ("second write", "s3:PutObject on {bucket}/{root}*", "PutObject")
    GET = ("read", "s3:GetObject on {bucket}/{root}*", "GetObject with Range")
    LIST = ("listing", "s3:ListBucket on {bucket}", "ListObjectsV2")
    DELETE = ("delete", "s3:DeleteObject on {bucket}/{root}*", "DeleteObject")
    GET_ABSENT = (
        "read of an absent object",
        "s3:ListBucket on {bucket} (without it S3 does not tell missing objects from forbidden ones)",
        "GetObject with Range",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What `explain` knows besides the fault."""

    location: S3Location
    endpoint: BucketEndpoint
    identity: str
    source: str
    """Where the credentials come from; empty if unknown, as `identity`."""
    region_of_bucket: str
    takes_others_put: bool | None = None
    """Whether the server takes a put of the other client, which sends another checksum; None if that was not tried."""
    certificate: str = ""
    """What is wrong with the server's certificate, in more words than the fault has."""
    remedy: str = ""
    """How to replace the credentials."""


class Diagnosis:
    """The result of one probe."""

    def __init__(
        self,
        location: S3Location,
        endpoint: BucketEndpoint,
        control: ControlClient,
        credentials: CredentialSource,
        *,
        ids: IdSource,
        has_two_clients: bool,
    ) -> None:
        self._location = location
        self._endpoint = endpoint
        self._control = control
        self._credentials = credentials
        self._ids = ids
        self._has_two_clients = has_two_clients

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
        identity = source = region = certificate = ""
        takes_others_put = None
        if isinstance(fault, Untrusted):
            certificate = await self._certificate(fault)
        elif isinstance(fault, ErrorReply):
            if fault.may_be_about_a_header and step is ProbeStep.PUT:
                takes_others_put = await self._takes_others_put(f"{self._location.root}.probe/{self._ids.next_ulid()}")
            if _is_about_region(fault):
                region = fault.region or await self._region_of_bucket()
            elif fault.status < 500:
                identity, source = await self._identity()
        facts = Facts(
            location=self._location,
            endpoint=self._endpoint,
            identity=identity,
            source=source,
            region_of_bucket=region,
            takes_others_put=takes_others_put,
            certificate=certificate,
            remedy=remedy(self._credentials.held),
        )
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
                found = await self._credentials.current()
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

    async def _certificate(self, fault: Untrusted) -> str:
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await describe_certificate(endpoint.url_of_requests, fault.flaw, route=endpoint.route, ca=endpoint.ca)
        except TimeoutError:
            return ""

    async def _takes_others_put(self, name: str) -> bool | None:
        """Whether the server takes what differs only by the checksum; None if it did not say. One client alone has tried its other one."""
        if not self._has_two_clients:
            return False
        try:
            async with asyncio.timeout(OTHERS_PUT_S):
                await self._control.put_if_absent(name, [b"checksum"])
        except ErrorReply:
            return False
        except (RequestFault, TimeoutError):
            return None
        with contextlib.suppress(RequestFault, TimeoutError):  # it is of the kind that a later probe leaves as well
            async with asyncio.timeout(LOOK_UP_S):
                await self._control.delete([name])
        return True

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
            return str(fault)
        case Untrusted():
            return f'Cannot trust {server} for bucket "{location.bucket}": {facts.certificate or fault}.'
        case Unreached():
            route = endpoint.route
            way, check = "", "endpoint in storage.url, and that the server runs"
            if route.proxy is not None:
                way = f" {route.shown}"
                check = f"the proxy; to go without it, add {urlsplit(endpoint.url_of_requests).hostname} to NO_PROXY"
            return f'Cannot reach {server}{way} for bucket "{location.bucket}" ({fault}). Check {check}.'
        case Interrupted() | TimeoutError():
            what = "in time" if isinstance(fault, TimeoutError) else f"that is whole ({fault})"
            return f"{place} gave no answer {what} to a test {step.value[0]}. Check that endpoint in storage.url names an S3 server."
        case ErrorReply():
            return _explain_refusal(step, fault, facts, place, who)
        case _:
            return f"{place} failed a test {step.value[0]}: {fault}"


def _explain_refusal(step: ProbeStep, fault: ErrorReply, facts: Facts, place: str, who: str) -> str:
    location, endpoint = facts.location, facts.endpoint
    renew = f" {facts.remedy}" if facts.remedy else ""
    key, secret, token = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", " (AWS_SESSION_TOKEN)")
    if facts.source not in ("", "env"):
        key, secret, token = "it there", "it there", " there"
    if _is_about_region(fault):
        if facts.region_of_bucket and facts.region_of_bucket != endpoint.region:
            return _other_region(location, endpoint, facts.region_of_bucket)
        return f"{place} is in another region: {fault}. Set ?region= to the bucket's."
    if fault.code == "NoSuchBucket":
        where = f"at {endpoint.shown} (region {endpoint.region})"
        return f'Bucket "{location.bucket}" does not exist {where}{who}. Create it, or correct storage.url.'
    if fault.is_about_the_key:
        return f"{place} does not know the access key: {fault.code}{who}. Check {key}.{renew}"
    if fault.code == "SignatureDoesNotMatch":
        wrong = "the secret key is not that of the access key"
        return f"{place} did not accept the signature{who}: {wrong}. Check {secret}.{renew}"
    if fault.is_about_the_token:
        return f"{place} did not accept the session token{who}: {fault.code}. Renew the credentials{token}.{renew}"
    if fault.is_about_the_clock:
        return f"{place} says that this machine's clock is wrong: {fault}. Set the clock, e.g. by NTP."
    if (unsupported := _explain_unsupported(step, fault, facts, place)) is not None:
        return unsupported
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


def _explain_unsupported(step: ProbeStep, fault: ErrorReply, facts: Facts, place: str) -> str | None:
    """The line for a request, or a header of one, that the server does not know; None if it may be about something else."""
    if not fault.may_be_about_a_header:
        return None
    conditions = f"{_no_conditions(facts.location, facts.endpoint)} It answered {fault}."
    match step:
        case ProbeStep.PUT if facts.takes_others_put or (fault.is_about_a_checksum and facts.takes_others_put is None):
            return f"{place} refuses the checksum of a test write (x-amz-checksum-crc64nvme): {fault}. {_OTHER_CLIENT}."
        case ProbeStep.PUT if fault.is_about_a_checksum:
            return f"{place} refuses every checksum of a test write, Content-MD5 as well: {fault}. {_ANOTHER_STORE}"
        case ProbeStep.PUT | ProbeStep.PUT_AGAIN if fault.is_about_a_condition:
            return conditions
        case _ if not fault.is_not_implemented:
            return None
        case ProbeStep.PUT if facts.takes_others_put is None:
            return (
                f"{place} does not know one of the headers of a test write, the checksum or If-None-Match: {fault}. {_OTHER_CLIENT}; "
                "if that is refused as well, use a store with conditional writes (AWS S3, MinIO, Ceph, Versity)."
            )
        case ProbeStep.PUT | ProbeStep.PUT_AGAIN:
            return conditions
        case _:
            return f"{place} does not know what a test {step.value[0]} asks for, {step.value[2]}: {fault}. {_ANOTHER_STORE}"


def _other_region(location: S3Location, endpoint: BucketEndpoint, actual: str) -> str:
    return f'Bucket "{location.bucket}" is in {actual}, but region {endpoint.region} is set. Use ?region={actual}.'


def _is_about_region(fault: ErrorReply) -> bool:
    return fault.code in CODES_OF_REGIONS or fault.status in (301, 307)


def _no_conditions(location: S3Location, endpoint: BucketEndpoint) -> str:
    return (
        f"{_place(location, endpoint)} does not honour If-None-Match: a second writer of a name would replace what is acknowledged. "
        "Use a store with conditional writes (AWS S3, MinIO, Ceph, Versity)."
    )


def _place(location: S3Location, endpoint: BucketEndpoint) -> str:
    return f'Bucket "{location.bucket}" at {endpoint.shown} (region {endpoint.region})'
