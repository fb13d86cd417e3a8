"""The times of a listing's objects are read by the interpreter's own parser, thousands at a time; all others by botocore's."""

from datetime import UTC, datetime

import pytest
from botocore.utils import parse_timestamp

from storage.objects.s3.aioboto3_client import _moment


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T07:00:00.000Z",
        "2026-11-21T07:00:00Z",
        "2026-11-21T07:00:00.123456+01:00",
        "2026-11-21T07:00:00",
        "Sat, 21 Nov 2026 07:00:00 GMT",
        "2026-11-21",
        "1795244400",
        1_795_244_400,
        1_795_244_400.5,
    ],
)
def test_a_time_is_what_botocore_reads(text: object) -> None:
    assert _moment(parse_timestamp, text) == parse_timestamp(text)


@pytest.mark.parametrize("text", ["", "2026-11-21Tsomewhen", "2026-13-41T07:00:00Z"])
def test_what_is_no_time_is_refused_as_botocore_refuses_it(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid timestamp"):
        _moment(parse_timestamp, text)


def test_a_time_of_a_listing_does_not_reach_the_slow_parser() -> None:
    assert _moment(lambda _: pytest.fail("asked"), "2026-11-21T07:00:00.000Z") == datetime(2026, 11, 21, 7, tzinfo=UTC)
