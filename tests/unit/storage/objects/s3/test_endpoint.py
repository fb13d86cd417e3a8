import pytest

from storage.objects.s3.endpoint import BucketEndpoint, resolve_endpoint
from storage.objects.s3.location import S3Location

OURS = "http://127.0.0.1:7070"


@pytest.mark.parametrize(
    ("location", "environment", "url", "region", "path_style"),
    [
        (S3Location(bucket="b-1"), {}, None, "us-east-1", False),
        (S3Location(bucket="b-1"), {"AWS_DEFAULT_REGION": "eu-west-1"}, None, "eu-west-1", False),
        (S3Location(bucket="b-1"), {"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "eu-west-1"}, None, "eu-west-2", False),
        (S3Location(bucket="b-1", region="eu-west-3"), {"AWS_REGION": "eu-west-2"}, None, "eu-west-3", False),
        (S3Location(bucket="b-1"), {"AWS_ENDPOINT_URL": f"{OURS}/"}, OURS, "us-east-1", True),
        (S3Location(bucket="b-1"), {"AWS_ENDPOINT_URL": "http://sts", "AWS_ENDPOINT_URL_S3": OURS}, OURS, "us-east-1", True),
        (S3Location(bucket="b-1", endpoint="http://h"), {"AWS_ENDPOINT_URL": OURS}, "http://h", "us-east-1", False),
        (S3Location(bucket="b.1"), {}, None, "us-east-1", True),
    ],
)
def test_the_url_goes_before_the_environment(
    location: S3Location, environment: dict[str, str], url: str | None, region: str, path_style: bool
) -> None:
    found = resolve_endpoint(location, environment)

    assert found == BucketEndpoint(bucket=location.bucket, url=url, region=region, path_style=path_style)


def test_a_bucket_that_is_a_host_name_is_part_of_the_address() -> None:
    assert (
        BucketEndpoint(bucket="b-1", url="https://s3.example:8443", region="r", path_style=False).url_of_bucket
        == "https://b-1.s3.example:8443"
    )
    assert BucketEndpoint(bucket="b-1", url="https://s3.example", region="r", path_style=True).url_of_bucket == "https://s3.example"
    assert BucketEndpoint(bucket="b-1", url=None, region="r", path_style=False).url_of_bucket is None


@pytest.mark.parametrize(
    ("path_style", "url"), [(False, "https://b-1.s3.eu-west-1.amazonaws.com"), (True, "https://s3.eu-west-1.amazonaws.com")]
)
def test_requests_to_aws_go_to_the_host_of_its_region(path_style: bool, url: str) -> None:
    assert BucketEndpoint(bucket="b-1", url=None, region="eu-west-1", path_style=path_style).url_of_requests == url
