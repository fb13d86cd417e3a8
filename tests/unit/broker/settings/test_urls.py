from pathlib import Path

import pytest

from broker.settings.urls import is_memory, parse_metadata_url, parse_storage_url, path_of


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


def test_both_may_be_in_memory() -> None:
    assert is_memory(parse_storage_url("memory://"))
    assert is_memory(parse_metadata_url("memory://"))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3//my-bucket", r'missing "://"\. Expected file://\./path, file:///path or memory://'),
        ("s3://bucket/prefix", r"this release has no S3 store yet\. Use file:///path"),
        ("gs://bucket", "unknown scheme gs://"),
        ("file://forebay-data", "names a host"),
        ("file://", "names no path"),
        ("file:///", "names no path"),
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
        ("oxia://oxia:6648/default", "this release has no Oxia client yet"),
        ("sqlite://meta.db", "names a host"),
        ("sqlite:///", "names no path"),
        ("file:///x", "unknown scheme file://"),
    ],
)
def test_a_metadata_url_that_cannot_be_opened_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_metadata_url(url)
