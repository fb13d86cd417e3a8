from pathlib import Path

import pytest

from process.settings.notation import is_memory, parse_metadata_url, parse_storage_url, path_of


@pytest.mark.parametrize(
    ("url", "path"),
    [("file://./forebay-data/objects", "forebay-data/objects"), ("file:///var/objects", "/var/objects"), ("file://../x", "../x")],
)
def test_a_storage_url_names_a_folder(url: str, path: str) -> None:
    assert path_of(parse_storage_url(url)) == Path(path)


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///./forebay-data/meta.db", "forebay-data/meta.db"), ("sqlite:////var/meta.db", "/var/meta.db")]
)
def test_a_metadata_url_names_a_file(url: str, path: str) -> None:
    assert path_of(parse_metadata_url(url)) == Path(path)


def test_a_bucket_is_a_storage_url_and_an_oxia_namespace_a_metadata_url() -> None:
    bucket, namespace = "s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=us-east-1&path_style=true", "oxia://oxia:6648/default"

    assert parse_storage_url(bucket) == bucket
    assert parse_metadata_url(namespace) == namespace


def test_both_may_be_in_memory() -> None:
    assert is_memory(parse_storage_url("memory://"))
    assert is_memory(parse_metadata_url("memory://"))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3//my-bucket", r'missing "://"\. Expected s3://bucket/prefix, file:///path or memory://'),
        ("s3://", r"names nothing after s3://\. Expected s3://bucket/prefix"),
        ("s3://B", "no name of a bucket"),
        ("s3://bucket/prefix?regoin=eu-west-1", "did you mean region"),
        ("s3://key:secret@bucket/prefix", "takes no credentials"),
        ("gs://bucket", "unknown scheme gs://"),
        ("file://forebay-data", "names a host"),
        ("file://", "names nothing after file://"),
        ("file:///", "names nothing after file://"),
        ("file:///x?y=z", "takes no parameters"),
        ("memory://x", "takes nothing after"),
    ],
)
def test_a_storage_url_that_cannot_be_opened_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_storage_url(url)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("oxia://", r"names nothing after oxia://\. Expected oxia://host:6648/namespace"),
        ("oxia://oxia:port/default", "port"),
        ("sqlite://meta.db", "names a host"),
        ("sqlite:///", "names nothing after sqlite://"),
        ("file:///x", "unknown scheme file://"),
    ],
)
def test_a_metadata_url_that_cannot_be_opened_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_metadata_url(url)
