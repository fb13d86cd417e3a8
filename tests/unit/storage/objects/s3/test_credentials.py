"""Credentials are renewed before they end and when a store refuses them, from wherever they come, for both clients."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from storage.errors import Unavailable
from storage.objects.s3 import credentials as module
from storage.objects.s3.client import DEFAULT_LIMITS
from storage.objects.s3.credentials import Credentials, CredentialSource
from storage.objects.s3.faults import NoCredentials
from storage.objects.s3.store import S3ClientName
from tests.kit.opened_s3 import ending_in, opened, takes_only, uses_both_clients, without_credentials
from tests.kit.scripted_s3 import Reply, ScriptedS3, error

ANSWERS_S = 30.0
FILE = "[default]\naws_access_key_id = KEY\naws_secret_access_key = secret\naws_session_token = {token}\n"


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def monotonic_s(self) -> float:
        return self.s

    def now_ms(self) -> int:
        return round(self.s * 1_000)


class Issuer:
    """A source of credentials: each search is answered with the next ones, or the last."""

    def __init__(self, *found: Credentials | Exception) -> None:
        self._found = list(found)
        self.searches = 0

    def __call__(self) -> Credentials:
        self.searches += 1
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if isinstance(found, Exception):
            raise found
        return found


def issued(token: str, *, ends_s: float | None = None) -> Credentials:
    return Credentials("KEY", "secret", token, ends_s, "iam-role")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANSWERS_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def token_of(source: CredentialSource) -> str | None:
    return (await source.current()).token


async def test_credentials_are_renewed_before_they_end_and_requests_go_on_meanwhile() -> None:
    clock = Clock()
    may_answer = threading.Event()

    def find() -> Credentials:
        if find_first:
            return find_first.pop()
        assert may_answer.wait(ANSWERS_S)
        return issued("second", ends_s=9_000)

    find_first = [issued("first", ends_s=1_000 + 3_600)]
    source = CredentialSource(find, environment={}, clock=clock)
    assert await token_of(source) == "first"
    clock.s += 3_600 - 301
    assert await token_of(source) == "first"
    clock.s += 2
    assert await token_of(source) == "first", "no request waits for a renewal"
    may_answer.set()
    await until(lambda: source.held is not None and source.held.token == "second")


async def test_credentials_that_have_ended_are_waited_for_and_used_if_there_are_no_others() -> None:
    clock = Clock()
    issuer = Issuer(issued("first", ends_s=1_010), NoCredentials("the role is gone"), issued("second", ends_s=9_000))
    source = CredentialSource(issuer, environment={}, clock=clock)
    assert await token_of(source) == "first"
    clock.s = 1_011.0
    assert await token_of(source) == "first"
    clock.s += DEFAULT_LIMITS.credentials_retry_pause_s
    assert await token_of(source) == "second"


async def test_nothing_is_searched_while_credentials_are_young() -> None:
    clock, issuer = Clock(), Issuer(issued("first", ends_s=1_000 + 3_600))
    source = CredentialSource(issuer, environment={}, clock=clock)
    for _ in range(50):
        await source.current()
        clock.s += 60
    assert issuer.searches == 1


async def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "credentials"
    path.write_text("first")
    source = CredentialSource(lambda: issued(path.read_text()), environment={"AWS_SHARED_CREDENTIALS_FILE": str(path)}, clock=clock)
    assert await token_of(source) == "first"
    path.write_text("the second")
    clock.s += module.LOOK_AGAIN_S
    await source.current()
    await until(lambda: source.held is not None and source.held.token == "the second")


async def test_a_store_that_refuses_has_them_searched_within_bounds() -> None:
    clock, issuer = Clock(), Issuer(issued("first"), issued("second"))
    source = CredentialSource(issuer, environment={}, clock=clock)
    first = await source.current()
    assert not await source.renewed(first), "they were searched just now"
    clock.s += DEFAULT_LIMITS.credentials_retry_pause_s
    assert not await source.renewed(first, perhaps=True), "it may be about a permission"
    assert await source.renewed(first)
    assert await source.renewed(first), "another request has renewed them"
    assert issuer.searches == 2
    second = await source.current()
    clock.s += module.SEARCH_AGAIN_IF_FORBIDDEN_S
    assert not await source.renewed(second, perhaps=True)
    assert issuer.searches == 3


async def test_a_search_that_fails_is_repeated_within_bounds(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "credentials"
    issuer = Issuer(issued("first"), NoCredentials("half a file"))
    source = CredentialSource(issuer, environment={"AWS_SHARED_CREDENTIALS_FILE": str(path)}, clock=clock)
    first = await source.current()
    path.write_text("half")
    clock.s += DEFAULT_LIMITS.credentials_retry_pause_s
    for _ in range(10):
        assert not await source.renewed(first)
    assert issuer.searches == 2
    clock.s += DEFAULT_LIMITS.credentials_retry_pause_s
    assert not await source.renewed(first)
    assert issuer.searches == 3
    assert await source.current() == first


async def test_requests_together_search_once() -> None:
    issuer = Issuer(issued("first"))
    source = CredentialSource(issuer, environment={}, clock=Clock())
    await asyncio.gather(*(source.current() for _ in range(20)))
    assert issuer.searches == 1


async def test_without_credentials_a_request_says_why() -> None:
    source = CredentialSource(Issuer(NoCredentials("the role is gone")), environment={}, clock=Clock())
    with pytest.raises(NoCredentials, match="the role is gone"):
        await source.current()


async def test_a_search_that_hangs_ends_the_wait_and_is_the_only_one() -> None:
    ends, began = threading.Event(), []

    def hang() -> Credentials:
        began.append(1)
        ends.wait(ANSWERS_S)
        return issued("late")

    source = CredentialSource(hang, environment={}, clock=Clock())
    for _ in range(3):
        with pytest.raises(NoCredentials, match="no answer in"):
            await source.current(within_s=0.05)
    assert began == [1]
    ends.set()
    await until(lambda: source.held is not None)


async def test_keys_of_the_environment_are_never_searched() -> None:
    source = CredentialSource(
        Issuer(NoCredentials("not asked")), environment={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, clock=Clock()
    )
    held = await source.current()
    assert held == Credentials("a", "b", None, None, "env")
    assert not await source.renewed(held)


# With both clients


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return without_credentials(monkeypatch, tmp_path)


@pytest.mark.parametrize("refusal", [error(400, "ExpiredToken"), error(403, "InvalidAccessKeyId"), error(403, "AccessDenied"), error(403)])
async def test_a_renewed_file_is_used_when_the_old_token_is_refused(
    environment: Path, client: S3ClientName, server: ScriptedS3, refusal: Reply
) -> None:
    valid = "token-1"
    takes_only(server, lambda: valid, reply=refusal)
    (environment / "credentials").write_text(FILE.format(token="token-1"))
    async with opened(server.endpoint, client) as store:
        await uses_both_clients(store, "wal/1")
        (environment / "credentials").write_text(FILE.format(token="token-2"))
        valid = "token-2"
        await uses_both_clients(store, "wal/2")


async def test_a_file_that_is_not_renewed_is_named(environment: Path, client: S3ClientName, server: ScriptedS3) -> None:
    takes_only(server, lambda: "another")
    (environment / "credentials").write_text(FILE.format(token="token-1"))
    said = f"refuses the credentials \\(from: shared-credentials-file {environment}/credentials\\). Renewed there they are used"
    async with opened(server.endpoint, client) as store:
        with pytest.raises(Unavailable, match=said):
            await store.put_if_absent("wal/1", [b"x"])
        with pytest.raises(Unavailable, match=said):
            await store.delete_many(["wal/1"])


async def test_of_keys_in_the_environment_a_refusal_says_that_they_are_there(
    environment: Path, client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    takes_only(server, lambda: "another")
    async with opened(server.endpoint, client) as store:
        with pytest.raises(Unavailable, match=r"\(from: env\). The environment of a process does not change .*AWS_SHARED_CREDENTIALS_FILE"):
            await store.put_if_absent("wal/1", [b"x"])
    assert len(server.requests) == 1


@asynccontextmanager
async def answering(answer: Callable[[str, str], tuple[int, str]]) -> AsyncIterator[str]:
    """An HTTP server that answers method, and path with body."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
                status, body = answer(method, path + " " + (await reader.readexactly(length)).decode())
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_server(converse, "127.0.0.1", 0) as issuer:
        yield f"http://127.0.0.1:{issuer.sockets[0].getsockname()[1]}"
        issuer.close()


async def test_a_renewed_web_identity_token_is_exchanged(
    environment: Path, client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = "of-web-1"
    takes_only(server, lambda: valid)
    token = environment / "web-token"
    token.write_text("web-1")

    def exchange(method: str, asked: str) -> tuple[int, str]:
        web = "web-2" if "web-2" in asked else "web-1"
        return 200, (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>KEY</AccessKeyId>"
            f"<SecretAccessKey>secret</SecretAccessKey><SessionToken>of-{web}</SessionToken><Expiration>{ending_in(3_600)}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )

    async with answering(exchange) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/forebay")
        async with opened(server.endpoint, client) as store:
            await uses_both_clients(store, "wal/1")
            token.write_text("web-2")
            valid = "of-web-2"
            await uses_both_clients(store, "wal/2")


async def test_the_role_of_a_machine_is_asked_without_a_proxy_and_again(
    environment: Path, client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = "token-1"
    takes_only(server, lambda: valid)

    def metadata(method: str, asked: str) -> tuple[int, str]:
        if method == "PUT":
            return 200, "session"
        if asked.strip().endswith("/role"):
            found = {"Code": "Success", "AccessKeyId": "KEY", "SecretAccessKey": "secret", "Token": valid, "Expiration": ending_in(3_600)}
            return 200, json.dumps(found)
        return 200, "role"

    async with answering(metadata) as address:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", server.endpoint.removeprefix("http://"))
        async with opened(server.endpoint, client) as store:
            await uses_both_clients(store, "wal/1")
            valid = "token-2"
            await uses_both_clients(store, "wal/2")


async def test_the_role_of_a_container_is_asked_again(
    environment: Path, client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = "token-1"
    takes_only(server, lambda: valid)

    def agent(method: str, asked: str) -> tuple[int, str]:
        return 200, json.dumps({"AccessKeyId": "KEY", "SecretAccessKey": "secret", "Token": valid, "Expiration": ending_in(3_600)})

    async with answering(agent) as address:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/role")
        async with opened(server.endpoint, client) as store:
            await uses_both_clients(store, "wal/1")
            valid = "token-2"
            await uses_both_clients(store, "wal/2")
