"""Authorities that are named are trusted by both clients, and what is wrong with a certificate is told apart, with the fix."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import Unavailable
from storage.objects.s3.endpoint import ca_file_of
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName
from tests.kit.botocore_clients import clients_are_made_cheaply
from tests.kit.opened_s3 import QUICK, hurry
from tests.kit.opened_s3 import opened as opened_s3
from tests.kit.scripted_s3 import ScriptedS3

__all__ = ["clients_are_made_cheaply"]

HERE = "subjectAltName=IP:127.0.0.1"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def issue(folder: Path, name: str, *, by: str, extensions: str, days: str = "9") -> None:
    """A certificate `name`.pem with a key of its own, signed by `by`."""
    (folder / f"{name}.ext").write_text(f"{extensions}\n")
    openssl(
        folder, *["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
        "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial",
        "-days", days, "-out", f"{name}.pem", "-extfile", f"{name}.ext",
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authorities `root`, `other` and, signed by `root`, `middle`; certificates of servers."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("root", "other", "alone"):
        openssl(
            folder, *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9"],
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-addext", HERE,
        )  # fmt: skip
    issue(folder, "middle", by="root", extensions="basicConstraints=critical,CA:TRUE")
    issue(folder, "good", by="root", extensions=HERE)
    issue(folder, "expired", by="root", extensions=HERE, days="-1")
    issue(folder, "named", by="root", extensions="subjectAltName=DNS:s3.example")
    issue(folder, "below", by="middle", extensions=HERE)
    (folder / "chained.pem").write_text((folder / "below.pem").read_text() + (folder / "middle.pem").read_text())
    (folder / "chained.key").write_text((folder / "below.key").read_text())
    return folder


@pytest.fixture(params=["obstore", "aioboto3"])
def client(request: pytest.FixtureRequest) -> S3ClientName:
    name: S3ClientName = request.param
    return name


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def opened(endpoint: str, client: S3ClientName, *, ca_file: str | None = None) -> AsyncIterator[S3ObjectStore]:
    """A store whose probe soon gives up."""
    async with opened_s3(endpoint, client, ca_file=ca_file, limits=replace(QUICK, probe_timeout_s=0.2)) as store:
        yield store


@asynccontextmanager
async def served(made: Path, name: str) -> AsyncIterator[str]:
    """The endpoint of a good store that shows the certificate `name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / f"{name}.pem", made / f"{name}.key")
    async with ScriptedS3.running(tls=context) as server:
        yield server.endpoint


@pytest.mark.parametrize("named_by", ["ca_file", "AWS_CA_BUNDLE", "SSL_CERT_FILE"])
@pytest.mark.parametrize("certificate", ["good", "chained"])
async def test_an_authority_may_be_named_in_three_ways(
    client: S3ClientName, made: Path, named_by: str, certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = str(made / "root.pem")
    if named_by != "ca_file":
        monkeypatch.setenv(named_by, ca_file)
    async with (
        served(made, certificate) as endpoint,
        opened(endpoint, client, ca_file=ca_file if named_by == "ca_file" else None) as store,
    ):
        await store.probe()


@pytest.mark.parametrize(
    ("in_url", "environment", "named_by"),
    [
        ("a", {"AWS_CA_BUNDLE": "b", "SSL_CERT_FILE": "c"}, "ca_file in storage.url"),
        (None, {"AWS_CA_BUNDLE": "b", "SSL_CERT_FILE": "c"}, "AWS_CA_BUNDLE"),
        (None, {"AWS_CA_BUNDLE": "", "SSL_CERT_FILE": "c"}, "SSL_CERT_FILE"),
        (None, {}, None),
    ],
)
def test_the_first_that_names_a_file_is_taken(in_url: str | None, environment: dict[str, str], named_by: str | None) -> None:
    found = ca_file_of(in_url, environment)

    assert (found and found.named_by) == named_by


@pytest.mark.parametrize(
    ("certificate", "ca", "said"),
    [
        ("expired", "root", "has expired: renew it there"),
        ("named", "root", "is for another name: .* (it is for s3.example, not for 127.0.0.1)"),
        ("good", None, "is not signed by an authority that is trusted: name its file by ca_file .* (signed by 'commonName=root'"),
        ("chained", "other", "is not signed by an authority that is trusted: .* (signed by 'commonName=root', which is not among "),
        ("below", "root", "chain of certificates is incomplete: .* (it comes alone, signed by 'commonName=middle', which is not among "),
    ],
)
async def test_what_is_wrong_with_a_certificate_is_told_apart(
    client: S3ClientName, made: Path, certificate: str, ca: str | None, said: str
) -> None:
    ca_file = None if ca is None else str(made / f"{ca}.pem")
    async with served(made, certificate) as endpoint, opened(endpoint, client, ca_file=ca_file) as store:
        with pytest.raises(Unavailable) as raised:
            await store.probe()
        with pytest.raises(Unavailable, match=r"the server's certificate|chain of certificates"):
            async with asyncio.timeout(60):
                await store.get_range("wal/1", 0, 1)

    line = str(raised.value)
    assert line.startswith(f'Cannot trust S3 at {endpoint} for bucket "bucket": the server')
    assert all(part in line for part in said.split(".*"))


async def test_an_authority_that_is_a_server_is_named_as_what_one_client_refuses(made: Path) -> None:
    async with served(made, "alone") as endpoint:
        async with opened(endpoint, "obstore", ca_file=str(made / "alone.pem")) as store:
            with pytest.raises(Unavailable, match=r"certificate of an authority as its own.*storage\.s3_client=aioboto3"):
                await store.probe()
        async with opened(endpoint, "aioboto3", ca_file=str(made / "alone.pem")) as store:
            await store.probe()


@pytest.mark.parametrize(("content", "why"), [(None, "no such file or directory"), ("nonsense", "it holds no certificate in PEM")])
async def test_a_file_that_cannot_be_used_ends_the_start(client: S3ClientName, tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Unavailable, match=f"ca_file in storage.url names {path}, which cannot be used: {why}"):
        async with opened("https://127.0.0.1:1", client, ca_file=str(path)):
            pass


@asynccontextmanager
async def tunnel() -> AsyncIterator[str]:
    """A proxy that connects as it is asked to."""

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        sink.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, authority, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        assert method == "CONNECT"
        host, _, port = authority.partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(reader, far_writer))
                group.create_task(pump(far_reader, writer))
        except* ConnectionError:
            pass

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


async def test_certificates_are_verified_behind_a_proxy_as_well(client: S3ClientName, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(made, "good") as endpoint, tunnel() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        async with opened(endpoint, client, ca_file=str(made / "root.pem")) as store:
            await store.probe()
        async with opened(endpoint, client) as store:
            with pytest.raises(Unavailable, match=r"not signed by an authority that is trusted.*signed by 'commonName=root'"):
                await store.probe()
            with pytest.raises(Unavailable, match="not signed by an authority that is trusted"):
                async with asyncio.timeout(100):
                    await store.delete_many(["wal/1"])
