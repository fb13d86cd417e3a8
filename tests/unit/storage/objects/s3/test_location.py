import re

import pytest

from storage.objects.s3.location import S3Location, parse_s3_url


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://my-bucket", S3Location(bucket="my-bucket")),
        ("s3://my-bucket/", S3Location(bucket="my-bucket")),
        ("s3://my.bucket.1/a/b/", S3Location(bucket="my.bucket.1", prefix="a/b")),
        ("s3://b-1/p?region=eu-west-1", S3Location(bucket="b-1", prefix="p", region="eu-west-1")),
        ("s3://b-1?endpoint=http://127.0.0.1:7070/", S3Location(bucket="b-1", endpoint="http://127.0.0.1:7070", path_style=True)),
        ("s3://b-1?endpoint=https%3A%2F%2Fs3.example&path_style=false", S3Location(bucket="b-1", endpoint="https://s3.example")),
        ("s3://b-1?path_style=true", S3Location(bucket="b-1", path_style=True)),
        ("s3://b-1?endpoint=http://[::1]:80", S3Location(bucket="b-1", endpoint="http://[::1]:80", path_style=True)),
    ],
)
def test_a_url_names_a_location(url: str, location: S3Location) -> None:
    assert parse_s3_url(url) == location


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3//my-bucket", "does not begin with s3://"),
        ("http://my-bucket", "does not begin with s3://"),
        ("", "does not begin with s3://"),
        ("s3://", "no name of a bucket"),
        ("s3:///prefix", "no name of a bucket"),
        ("s3://My_Bucket", "no name of a bucket"),
        ("s3://ab", "no name of a bucket"),
        ("s3://a..b", "no name of a bucket"),
        ("s3://bucket:9000/p", "?endpoint=http://host:9000"),
        ("s3://bucket:x/p", "is no URL"),
        ("s3://bucket/a//b", "is no prefix"),
        ("s3://bucket/../b", "is no prefix"),
        ("s3://bucket/a%20b", "is no prefix"),
        ("s3://bucket/" + "a" * 250 + "/" + "b" * 250, "is no prefix"),
        ("s3://bucket/p#x", "after #"),
        ("s3://bucket?endpont=http://h", "did you mean endpoint?"),
        ("s3://bucket?pathstyle=true", "did you mean path_style?"),
        ("s3://bucket?zzz=1", "there are endpoint, region, path_style"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?region=", "region is empty"),
        ("s3://bucket?region=EU%20west", "expected one like us-east-1"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "expected http://host:port"),
        ("s3://bucket?endpoint=ftp://h", "expected http://host:port"),
        ("s3://bucket?endpoint=http://", "expected http://host:port"),
        ("s3://bucket?endpoint=http://h:x", "expected http://host:port"),
        ("s3://bucket?endpoint=http://h/path", "more than a server"),
        ("s3://bucket?path_style=yes", "expected true or false"),
    ],
)
def test_a_url_that_names_none_says_what_was_expected(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_s3_url(url)


@pytest.mark.parametrize("url", ["s3://AKIAKEY:sEcReT@bucket/p", "s3://bucket?endpoint=http://AKIAKEY:sEcReT@host"])
def test_credentials_in_a_url_are_refused_with_the_fix_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as refused:
        parse_s3_url(url)
    assert "sEcReT" not in str(refused.value)


@pytest.mark.parametrize(("prefix", "root"), [("", ""), ("a/b", "a/b/")])
def test_a_prefix_is_a_folder(prefix: str, root: str) -> None:
    assert S3Location(bucket="bucket", prefix=prefix).root == root
