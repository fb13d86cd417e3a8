"""TLS and tokens, on played nodes that ask for them: what is let in, and what is said to whoever is not."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from runtime.supervision import Nursery
from storage.errors import Unavailable
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import Applied, Key, Put
from tests.integration.oxia.certificates import Authority, Pair
from tests.integration.oxia.opening import clock, opened
from tests.integration.oxia.playing import PlayedNode, Refusal, TokenChecked, played

KEY = Key("llog/0/meta/control", "topic/0")
SECRET = "tell-nobody"
OPENED_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def of_this_host(authority: Authority) -> Pair:
    return authority.issue("node", alternative="IP:127.0.0.1")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


def server_credentials(pair: Pair, *, clients_of: Authority | None = None) -> grpc.ServerCredentials:
    if clients_of is None:
        return grpc.ssl_server_credentials([pair.pem])
    return grpc.ssl_server_credentials([pair.pem], root_certificates=clients_of.ca_file.read_bytes(), require_client_auth=True)


async def refusal_of(url: str) -> str:
    """Why it cannot be opened: one line, soon, without the token."""
    async with Nursery() as nursery:
        with pytest.raises(Unavailable) as refused:
            async with asyncio.timeout(OPENED_WITHIN_S):
                await OxiaMetadataStore.open(parse_oxia_url(url), clock=clock, chance=random.Random(), nursery=nursery)
    reason = str(refused.value)
    assert reason.startswith("cannot open oxia://")
    assert "\n" not in reason
    assert SECRET not in reason
    return reason


@contextlib.asynccontextmanager
async def guarded(pair: Pair, *, clients_of: Authority | None = None) -> AsyncIterator[tuple[PlayedNode, TokenChecked]]:
    """A node that speaks TLS and wants the token."""
    checked = TokenChecked(SECRET)
    async with played(credentials=server_credentials(pair, clients_of=clients_of), interceptors=[checked]) as node:
        yield node, checked


async def test_every_request_goes_over_tls_and_carries_the_token(authority: Authority, of_this_host: Pair, token_file: Path) -> None:
    async with (
        guarded(of_this_host) as (node, checked),
        opened(f"oxia://{node.address}/ns?tls=true&ca_file={authority.ca_file}&token_file={token_file}") as store,
    ):
        assert isinstance(await store.write([Put(KEY, b"", None)]), Applied)
        assert None not in await store.get_many([KEY])
        assert None not in await store.get_many([KEY, KEY])
        assert await store.list(Key("llog/a/", "a"), "llog/a/~")
        assert [record async for record in store.range_scan(Key("llog/a/", "a"), "llog/a/~")]
        store.subscribe(lambda _path, _version: None)
        session = await store.open_session(timeout_ms=2_000)
        await node.until_asked("KeepAlive")
        await node.until_asked("GetNotifications")
        await session.close()

    assert set(checked.seen) == {f"Bearer {SECRET}"}
    assert len(checked.seen) >= 9


async def test_a_client_shows_its_certificate_to_a_server_that_asks_for_one(
    authority: Authority, of_this_host: Pair, token_file: Path
) -> None:
    ours = authority.issue("broker", alternative="DNS:broker-1")
    async with guarded(of_this_host, clients_of=authority) as (node, _):
        url = f"oxia://{node.address}/ns?tls=true&ca_file={authority.ca_file}&token_file={token_file}"
        async with opened(f"{url}&cert_file={ours.certificate}&key_file={ours.key}") as store:
            await store.probe()

        assert "cert_file and key_file in metadata.url" in await refusal_of(url)


async def test_a_server_of_another_authority_is_not_believed(of_this_host: Pair, tmp_path: Path) -> None:
    others = Authority(tmp_path, "others")
    async with played(credentials=server_credentials(of_this_host)) as node:
        reason = await refusal_of(f"oxia://{node.address}/ns?tls=true&ca_file={others.ca_file}")

    assert f"oxia at {node.address}: its certificate is not signed by an authority of ca_file: correct ca_file in metadata.url" in reason


async def test_a_certificate_for_another_name_is_believed_if_that_name_is_given(authority: Authority) -> None:
    pair = authority.issue("elsewhere", alternative="DNS:oxia.example")
    async with played(credentials=server_credentials(pair)) as node:
        url = f"oxia://{node.address}/ns?tls=true&ca_file={authority.ca_file}"

        assert "its certificate is for another name: give that by server_name in metadata.url" in await refusal_of(url)
        async with opened(f"{url}&server_name=oxia.example") as store:
            await store.probe()


async def test_a_server_without_tls_is_named(authority: Authority) -> None:
    async with played() as node:
        reason = await refusal_of(f"oxia://{node.address}/ns?tls=true&ca_file={authority.ca_file}")

    assert f"oxia at {node.address}: what listens there does not speak TLS: remove tls=true from metadata.url" in reason


async def test_a_server_with_tls_is_named_to_who_comes_without(of_this_host: Pair) -> None:
    async with played(credentials=server_credentials(of_this_host)) as node:
        reason = await refusal_of(f"oxia://{node.address}/ns")

    assert f"oxia at {node.address}: " in reason
    assert "tls=true" in reason


async def test_a_missing_token_and_a_wrong_one_are_named(authority: Authority, of_this_host: Pair, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("an-older-one")
    async with guarded(of_this_host) as (node, _):
        url = f"oxia://{node.address}/ns?tls=true&ca_file={authority.ca_file}"
        without, with_wrong = await refusal_of(url), await refusal_of(f"{url}&token_file={wrong}")

    fix = "name a file with a valid token by token_file in metadata.url"
    assert f"oxia at {node.address}: it does not let us in (empty token): {fix}" in without
    assert f"it does not let us in (failed to verify the token): {fix}" in with_wrong
    assert "an-older-one" not in with_wrong


async def test_a_cluster_that_minds_by_which_address_it_is_called_is_named() -> None:
    async with played() as node:
        node.assignments_refusal = Refusal(grpc.StatusCode.PERMISSION_DENIED, f'oxia: unexpected authority "{node.address}"')

        assert "set featureFlags.authorityValidation to false" in await refusal_of(f"oxia://{node.address}/ns")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("ca_file={folder}/none.pem", "ca_file {folder}/none.pem cannot be read (No such file or directory): correct metadata.url"),
        ("ca_file={folder}/junk", "ca_file {folder}/junk holds no certificate in PEM: correct metadata.url"),
        ("cert_file={folder}/junk&key_file={folder}/junk", "cert_file {folder}/junk and key_file {folder}/junk are no certificate"),
        ("cert_file={folder}/none&key_file={folder}/junk", "cert_file {folder}/none cannot be read"),
        ("token_file={folder}/none", "token_file {folder}/none cannot be read (No such file or directory): correct metadata.url"),
        ("token_file={folder}/empty", "token_file {folder}/empty is empty: write the token into it"),
        ("token_file={folder}/junk", "token_file {folder}/junk holds more than a token: write the token into it and nothing else"),
    ],
)
async def test_files_that_cannot_serve_are_named_before_anybody_is_asked(parameters: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("neither this\nnor that")
    (tmp_path / "empty").write_text(" \n")

    assert said.format(folder=tmp_path) in await refusal_of(f"oxia://127.0.0.1:1/ns?tls=true&{parameters.format(folder=tmp_path)}")


async def test_a_certificate_that_goes_with_another_key_is_named(authority: Authority, of_this_host: Pair) -> None:
    other = authority.issue("other", alternative="DNS:other")
    reason = await refusal_of(f"oxia://127.0.0.1:1/ns?tls=true&cert_file={of_this_host.certificate}&key_file={other.key}")

    assert "are no certificate and its key in PEM, without a password (KEY_VALUES_MISMATCH): correct metadata.url" in reason
