"""What a probe that fails tells the operator: one line with bucket, endpoint, region, identity, and the fix."""

import base64
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from storage.errors import Unavailable
from storage.objects.s3.diagnosis import Facts, ProbeStep, explain
from storage.objects.s3.endpoint import BucketEndpoint
from storage.objects.s3.faults import ErrorReply
from storage.objects.s3.location import S3Location
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName
from tests.kit.opened_s3 import QUICK, hurry, opened
from tests.kit.scripted_s3 import LOST, Reply, Request, ScriptedS3, error

IDENTITY = "as access key AKIA…ESTS (credentials from: env)"

CASES = [
    ("PUT", error(403, "AccessDenied"), f"refused a test write: 403 AccessDenied {IDENTITY}. Needs s3:PutObject on bucket/root/*."),
    ("GET", error(403, "AccessDenied"), f"refused a test read: 403 AccessDenied {IDENTITY}. Needs s3:GetObject on bucket/root/*."),
    ("POST", error(403, "AccessDenied"), f"refused a test delete: 403 AccessDenied {IDENTITY}. Needs s3:DeleteObject on bucket/root/*."),
    ("GET absent", error(403, "AccessDenied"), "Needs s3:ListBucket on bucket "),
    ("PUT", error(404, "NoSuchBucket"), f'Bucket "bucket" does not exist at ENDPOINT (region us-east-1) {IDENTITY}. Create it'),
    ("PUT", error(403, "InvalidAccessKeyId"), f"does not know the access key: InvalidAccessKeyId {IDENTITY}. Check AWS_ACCESS_KEY_ID."),
    ("PUT", error(403, "SignatureDoesNotMatch"), "Check AWS_SECRET_ACCESS_KEY."),
    ("PUT", error(400, "ExpiredToken"), "Renew the credentials"),
    ("PUT", error(403, "RequestTimeTooSkewed"), "clock is wrong"),
    (
        "PUT",
        error(400, "AuthorizationHeaderMalformed", extra="<Region>eu-west-1</Region>"),
        'Bucket "bucket" is in eu-west-1, but region us-east-1 is set. Use ?region=eu-west-1.',
    ),
    (
        "PUT",
        error(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1"),
        'Bucket "bucket" is in eu-west-1, but region us-east-1 is set. Use ?region=eu-west-1.',
    ),
    ("PUT", error(501, "NotImplemented"), "does not honour If-None-Match"),
    ("PUT", error(503, "SlowDown"), "is busy or failing: 503 SlowDown"),
    ("PUT", error(405), "Check that endpoint in storage.url names an S3 server."),
    ("PUT", LOST, "Check that endpoint in storage.url names an S3 server."),
    ("PUT", Reply(raw=b"SSH-2.0-OpenSSH_9.6\r\n"), "Check that endpoint in storage.url names an S3 server."),
    ("GET", Reply(200, b"<html>"), "Check that endpoint in storage.url names an S3 server."),
    ("PUT", error(400, "InvalidRequest"), f"refused a test write: 400 InvalidRequest (as the test wants it) {IDENTITY}."),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
async def store(server: ScriptedS3, client: S3ClientName) -> AsyncIterator[S3ObjectStore]:
    async with opened(server.endpoint, client, prefix="root") as store:
        yield store


async def failure(store: S3ObjectStore) -> str:
    with pytest.raises(Unavailable) as raised:
        await store.probe()
    return str(raised.value)


async def test_a_probe_of_a_good_store_passes_and_leaves_nothing(store: S3ObjectStore, server: ScriptedS3) -> None:
    await store.probe()

    assert server.objects == {}
    assert all(request.key.startswith("root/.probe/") for request in server.requests if request.method in ("PUT", "GET"))


@pytest.mark.parametrize(("step", "reply", "message"), CASES, ids=lambda value: value if isinstance(value, str) else None)
async def test_a_failed_probe_names_the_place_and_the_fix(
    store: S3ObjectStore, server: ScriptedS3, step: str, reply: Reply, message: str
) -> None:
    method, _, absent = step.partition(" ")
    server.answer(method, reply, times=1_000, when=lambda request: not absent or request.key not in server.objects)
    # For the region of a bucket that answers a redirect.
    server.answer("HEAD", reply, times=1_000, when=lambda request: request.path.rstrip("/") == "/bucket")
    line = await failure(store)

    assert message.replace("ENDPOINT", server.endpoint) in line
    assert '"bucket"' in line
    assert "us-east-1" in line
    assert "\n" not in line


async def test_a_server_that_is_not_there_is_named(client: S3ClientName) -> None:
    async with opened("http://127.0.0.1:1", client) as store:
        line = await failure(store)

    assert line.startswith('Cannot reach S3 at http://127.0.0.1:1 for bucket "bucket" (')
    assert "onnect" in line


async def test_a_server_that_never_answers_is_named(server: ScriptedS3, client: S3ClientName) -> None:
    server.answer("PUT", Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Le"), times=1_000)

    async with opened(server.endpoint, client, prefix="root", limits=replace(QUICK, probe_timeout_s=0.4)) as store:
        assert "gave no answer" in await failure(store)


async def test_a_store_that_replaces_objects_is_refused_and_left_clean(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.conditional = False

    assert "does not honour If-None-Match" in await failure(store)
    assert server.objects == {}


async def test_a_store_that_reads_other_bytes_is_refused(store: S3ObjectStore, server: ScriptedS3) -> None:
    async def stale(request: Request) -> Reply | None:
        if request.method != "GET":
            return None
        start, end = request.headers["range"].removeprefix("bytes=").split("-")
        return Reply(206, b"?" * (int(end) + 1 - int(start)), {"Content-Range": f"bytes {start}-{end}/{int(end) + 1}"})

    server.add(stale)

    assert "reads back other bytes" in await failure(store)


async def test_a_store_that_does_not_delete_is_refused(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("POST", Reply(200, b"<DeleteResult></DeleteResult>"))

    assert "still has an object after its delete" in await failure(store)


async def test_no_credentials_are_told_when_a_store_is_opened(client: S3ClientName, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    with pytest.raises(Unavailable, match="No S3 credentials found"):
        async with opened("http://127.0.0.1:1", client):
            pass


async def test_a_profile_that_does_not_exist_is_told_when_a_store_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(Unavailable, match="nobodys"):
        async with opened("http://127.0.0.1:1", "obstore"):
            pass


async def test_a_profile_that_does_not_exist_fails_a_delete_and_not_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    async with opened("http://127.0.0.1:1", "obstore") as store:
        with pytest.raises(Unavailable, match="nobodys"):
            await store.delete_many(["a"])


async def test_credentials_of_a_profile_are_used_by_both_clients(
    server: ScriptedS3, client: S3ClientName, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("aws") / "credentials"
    file.write_text("[dev]\naws_access_key_id = AKIAOFAPROFILEX\naws_secret_access_key = secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_PROFILE", "dev")
    async with opened(server.endpoint, client) as store:
        await store.probe()

    assert all("Credential=AKIAOFAPROFILEX/" in request.headers["authorization"] for request in server.requests)


CHECKSUM = error(501, "NotImplemented", "A header you provided implies functionality that is not implemented: x-amz-checksum-crc64nvme")
MUTE = error(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
IN_WORDS = error(400, "InvalidArgument", "Unsupported header 'x-amz-checksum-crc64nvme' received for this API call.")


def refuses(server: ScriptedS3, reply: Reply, *headers: str) -> None:
    """Let `server` answer puts with one of `headers` so."""
    server.answer("PUT", reply, times=1_000, when=lambda request: any(name.startswith(headers) for name in request.headers))


@pytest.mark.parametrize("reply", [CHECKSUM, MUTE, IN_WORDS])
async def test_a_server_that_knows_one_checksum_only_is_told_from_one_without_conditions(
    server: ScriptedS3, client: S3ClientName, reply: Reply
) -> None:
    refuses(server, reply, "x-amz-checksum-crc64nvme")
    async with opened(server.endpoint, client) as store:
        if client == "aioboto3":
            await store.probe()
        else:
            assert "refuses the checksum of a test write (x-amz-checksum-crc64nvme)" in (line := await failure(store))
            assert "Set storage.s3_client=aioboto3" in line
            assert "If-None-Match" not in line
    assert server.objects == {}


async def test_a_server_that_knows_no_newer_checksum_is_given_the_oldest(server: ScriptedS3) -> None:
    refuses(server, IN_WORDS, "x-amz-checksum")
    async with opened(server.endpoint, "aioboto3") as store:
        await store.probe()
        await store.put_if_absent("wal/1", [b"x"])
        await store.put_if_absent("wal/2", [b"x"])

    puts = [request.headers for request in server.requests if request.method == "PUT" and "/wal/" in request.path]
    assert [headers["content-md5"] for headers in puts] == ["ndTkYSaMgDT1yFZOFVxnpg=="] * 2, "and is not asked again"


async def test_a_server_that_refuses_conditions_is_blamed_for_those(server: ScriptedS3, client: S3ClientName) -> None:
    refuses(server, MUTE, "if-none-match")
    async with opened(server.endpoint, client) as store:
        assert "does not honour If-None-Match" in await failure(store)


async def test_a_question_without_an_answer_blames_nothing_that_it_would_have_shown(server: ScriptedS3) -> None:
    refuses(server, CHECKSUM, "x-amz-checksum-crc64nvme")
    server.answer("PUT", LOST, times=1_000)
    async with opened(server.endpoint, "obstore") as store:
        assert "Set storage.s3_client=aioboto3" in await failure(store)


async def test_a_refusal_before_it_was_looked_into_names_both_headers() -> None:
    facts = Facts(
        location=S3Location(bucket="bucket"),
        endpoint=BucketEndpoint(bucket="bucket", url="http://s3", region="r", path_style=True),
        identity="",
        source="",
        region_of_bucket="",
    )
    line = explain(ProbeStep.PUT, ErrorReply(501, "NotImplemented"), facts)

    assert "does not know one of the headers of a test write, the checksum or If-None-Match" in line
    assert "storage.s3_client=aioboto3" in line


async def test_a_server_that_does_not_know_a_read_is_not_blamed_for_conditions(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("GET", error(501, "NotImplemented"), times=1_000)
    line = await failure(store)

    assert "does not know what a test read asks for, GetObject with Range: 501 NotImplemented" in line
    assert "If-None-Match" not in line


async def test_many_objects_are_deleted_with_the_checksum_that_every_server_knows(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("POST", error(400, "MissingContentMD5"), times=1_000, when=lambda request: "content-md5" not in request.headers)
    await store.probe()

    (deleted,) = (request for request in server.requests if request.method == "POST")
    assert deleted.headers["content-md5"] == base64.b64encode(hashlib.md5(deleted.body).digest()).decode()
    assert not [name for name in deleted.headers if "checksum" in name]


@pytest.mark.parametrize("reply", [error(501, "NotImplemented"), error(405, "MethodNotAllowed")])
async def test_a_server_that_deletes_one_at_a_time_is_asked_to(store: S3ObjectStore, server: ScriptedS3, reply: Reply) -> None:
    server.answer("POST", reply, times=1_000)
    await store.probe()
    keys = [f"wal/{number}" for number in range(40)]
    for key in keys:
        await store.put_if_absent(key, [b"x"])
    await store.delete_many([*keys, "wal/absent"])

    assert server.objects == {}
    assert server.count("POST") == 1, "the other way is not tried again"


@pytest.mark.parametrize("step", ProbeStep)
def test_on_aws_the_identity_is_an_arn(step: ProbeStep) -> None:
    facts = Facts(
        location=S3Location(bucket="my-bucket"),
        endpoint=BucketEndpoint(bucket="my-bucket", url=None, region="eu-west-1", path_style=False),
        identity="arn:aws:iam::123:role/x",
        source="assume-role-with-web-identity",
        region_of_bucket="",
    )
    line = explain(step, ErrorReply(403, "AccessDenied"), facts)

    assert line.startswith('Bucket "my-bucket" at AWS (region eu-west-1) refused a test ')
    assert "as arn:aws:iam::123:role/x (credentials from: assume-role-with-web-identity). Needs s3:" in line
