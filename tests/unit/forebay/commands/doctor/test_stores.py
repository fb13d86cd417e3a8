"""The verdicts about both stores, and that stores that break their promises are found out."""

from collections.abc import Sequence

import pytest

from forebay.commands.doctor import metadata, objects
from forebay.commands.doctor.finding import Checks, Finding, FindingStatus
from forebay.commands.doctor.metadata import Conditions, MetadataChecks
from forebay.commands.doctor.objects import ObjectChecks, reason_at
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.identity import open_cluster
from storage.errors import AlreadyExists, Unavailable
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, OpResult, Put, Status, WriteOp, WriteOutcome, children_of
from storage.objects.memory import MemoryObjectStore
from storage.objects.s3.diagnosis import ProbeStep
from storage.objects.s3.faults import ErrorReply
from storage.vocabulary import Buffer

clock = SystemClock()
ids = IdSource(clock=clock)
WON, LOST = OpResult(Status.OK, 1), OpResult(Status.UNEXPECTED_VERSION, None)
RIGHT = Conditions(WON, LOST, OpResult(Status.OK, 2), LOST, b"2")


def verdicts(checks: Checks) -> dict[str, FindingStatus]:
    return {one.check: one.verdict for one in checks.findings}


def detail(checks: Checks, check: str) -> str:
    return next(one.detail for one in checks.findings if one.check == check)


# The metadata store


def test_conditions_that_hold_are_well() -> None:
    assert metadata.of_conditions(RIGHT).verdict is FindingStatus.OK


@pytest.mark.parametrize(
    ("seen", "phrase"),
    [
        (RIGHT._replace(created=LOST), "a put of an absent key was refused"),
        (RIGHT._replace(created_again=WON), "though it had to be absent"),
        (RIGHT._replace(replaced=LOST), "at the right version was refused"),
        (RIGHT._replace(replaced_again=WON), "at an old version was not refused"),
        (RIGHT._replace(found=b"3"), "is not what is read"),
        (RIGHT._replace(found=None), "is not what is read"),
    ],
)
def test_each_condition_that_does_not_hold_is_told(seen: Conditions, phrase: str) -> None:
    found = metadata.of_conditions(seen)

    assert found.verdict is FindingStatus.FAILED
    assert phrase in found.detail


def test_a_record_that_outlives_its_session_is_a_failure() -> None:
    assert metadata.of_session(None).verdict is FindingStatus.OK
    assert metadata.of_session(b"2").verdict is FindingStatus.FAILED


@pytest.mark.parametrize("judge", [metadata.of_latency, objects.of_latency])
def test_the_median_decides_whether_a_store_is_slow(judge: "object") -> None:
    assert callable(judge)
    assert judge([0.001, 0.002, 0.003, 5.0, 5.0]).verdict is FindingStatus.OK
    assert "median 3.0 ms, slowest 5000.0 ms" in judge([0.001, 0.002, 0.003, 5.0, 5.0]).detail
    assert judge([0.001, 0.002, 5.0, 5.0, 5.0]).verdict is FindingStatus.WARNING


async def test_a_metadata_store_is_looked_at_and_left_as_it_was() -> None:
    store = MemoryMetadataStore(clock=clock)
    cluster = await open_cluster(store, ids, clock)
    checks = Checks(lambda _: None)

    known = await MetadataChecks(store, checks, clock=clock, ids=ids).run()

    start, end = children_of("llog/probes")
    assert (known.is_known, known.cluster_id, known.brokers) == (True, cluster.cluster_id, ())
    assert verdicts(checks) == dict.fromkeys(metadata.OF_STORE, FindingStatus.OK)
    assert await store.list(Key(start, "llog"), end) == []
    await store.close()


class Unconditional(MemoryMetadataStore):
    """Takes every put."""

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        return await super().write([Put(op.key, op.value, None, op.session) if isinstance(op, Put) else op for op in ops])


async def test_a_store_that_ignores_conditions_is_found_out() -> None:
    store = Unconditional(clock=clock)
    checks = Checks(lambda _: None)

    await MetadataChecks(store, checks, clock=clock, ids=ids).run()

    assert verdicts(checks)[metadata.CONDITIONS] is FindingStatus.FAILED
    assert "at an old version was not refused" in detail(checks, metadata.CONDITIONS)
    await store.close()


# The object store


async def run(store: MemoryObjectStore) -> Checks:
    checks = Checks(lambda _: None)
    await ObjectChecks(store, checks, url="memory://", known="works", clock=clock, ids=ids).run()
    return checks


async def test_an_object_store_is_looked_at_and_left_as_it_was() -> None:
    store = MemoryObjectStore(clock=clock)

    checks = await run(store)

    assert verdicts(checks) == dict.fromkeys((objects.STORE, *objects.OF_STORE), FindingStatus.OK)
    assert [stat async for stat in store.list("")] == []


class Overwriting(MemoryObjectStore):
    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        try:
            await super().put_if_absent(key, parts)
        except AlreadyExists:
            await self.delete_many([key])
            await super().put_if_absent(key, parts)


async def test_a_store_that_overwrites_is_found_out() -> None:
    checks = await run(Overwriting(clock=clock))

    assert verdicts(checks)[objects.PUT_AGAIN] is FindingStatus.FAILED
    assert "a second writer would replace what is acknowledged" in detail(checks, objects.PUT_AGAIN)


class ReadOnly(MemoryObjectStore):
    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        raise Unavailable("read-only")

    async def probe(self) -> None:
        raise Unavailable("read-only")


async def test_a_store_that_takes_no_puts_is_still_asked_what_it_allows() -> None:
    checks = await run(ReadOnly(clock=clock))

    assert verdicts(checks) == {
        objects.STORE: FindingStatus.FAILED,
        objects.PUT: FindingStatus.FAILED,
        objects.PUT_AGAIN: FindingStatus.SKIPPED,
        objects.GET: FindingStatus.SKIPPED,
        objects.LIST: FindingStatus.OK,
        objects.LATENCY: FindingStatus.SKIPPED,
        objects.DELETE: FindingStatus.OK,
    }
    assert (detail(checks, objects.STORE), detail(checks, objects.PUT)) == ("read-only", "for the same reason")


@pytest.mark.parametrize(
    ("step", "needs"),
    [
        (ProbeStep.PUT, "s3:PutObject on records/llog/*"),
        (ProbeStep.GET, "s3:GetObject on records/llog/*"),
        (ProbeStep.LIST, "s3:ListBucket on records"),
        (ProbeStep.DELETE, "s3:DeleteObject on records/llog/*"),
    ],
)
def test_a_refusal_of_s3_names_the_permission_it_needs(step: ProbeStep, needs: str) -> None:
    error = Unavailable("not done")
    error.__cause__ = ErrorReply(403, "AccessDenied")

    why = reason_at("s3://records/llog?endpoint=http://s3:9000", step, error)

    assert why is not None
    assert f"refused a test {step.value[0]}: 403 AccessDenied" in why
    assert why.endswith(f"Needs {needs}.")


def test_what_is_read_back_must_be_what_was_written() -> None:
    assert objects.of_range_read(b"written", start=0, end=7).verdict is FindingStatus.OK
    assert objects.of_range_read(b"changed", start=0, end=7).verdict is FindingStatus.FAILED


def test_a_list_that_lacks_an_object_is_a_warning() -> None:
    found: Finding = objects.of_list([".probe/b"], ".probe/a")

    assert found.verdict is FindingStatus.WARNING


# The way to S3


@pytest.mark.parametrize(
    ("endpoint", "environment", "verdict", "says"),
    [
        ("http://10.0.0.1:9000", {}, FindingStatus.OK, "S3 at http://10.0.0.1:9000 is reached directly"),
        (
            "http://10.0.0.1:9000",
            {"HTTP_PROXY": "http://user:sEcReT@proxy:3128"},
            FindingStatus.OK,
            "is reached through the proxy http://proxy:3128 (HTTP_PROXY)",
        ),
        (
            "http://10.0.0.1:9000",
            {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"},
            FindingStatus.OK,
            "is reached directly (NO_PROXY names it)",
        ),
        ("http://10.0.0.1:9000", {"ALL_PROXY": "socks5://proxy"}, FindingStatus.FAILED, "ALL_PROXY names a proxy"),
        (
            "https://s3.example",
            {"AWS_CA_BUNDLE": "/ca.pem"},
            FindingStatus.OK,
            "trusted are the authorities of the system and those of /ca.pem (AWS_CA_BUNDLE)",
        ),
    ],
)
def test_the_way_to_s3_is_told(
    endpoint: str, environment: dict[str, str], verdict: FindingStatus, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = objects.of_route(f"s3://bucket?endpoint={endpoint}")

    assert found is not None
    assert found.verdict is verdict
    assert says in found.detail
    assert "sEcReT" not in found.detail


def test_a_folder_has_no_way_to_it() -> None:
    assert objects.of_route("file:///nowhere") is None
