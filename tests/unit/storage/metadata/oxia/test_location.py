import pytest

from storage.metadata.oxia.location import OxiaLocation, parse_oxia_url


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("oxia://oxia.example:7000/forebay", OxiaLocation("oxia.example", 7000, "forebay")),
        ("oxia://oxia.example", OxiaLocation("oxia.example", 6648, "default")),
        ("oxia://oxia.example/", OxiaLocation("oxia.example", 6648, "default")),
        ("oxia://a:1,b,c:3/ns", OxiaLocation("a", 1, "ns", ("b:6648", "c:3"))),
        ("oxia://[::1]:7000,[::2]/ns", OxiaLocation("::1", 7000, "ns", ("[::2]:6648",))),
    ],
)
def test_a_url_names_nodes_and_a_namespace(url: str, location: OxiaLocation) -> None:
    assert parse_oxia_url(url) == location


def test_a_location_is_written_as_its_url() -> None:
    location = parse_oxia_url("oxia://a:1,[::1]/ns")

    assert location.addresses == ("a:1", "[::1]:6648")
    assert str(location) == "oxia://a:1,[::1]:6648/ns"
    assert parse_oxia_url(str(location)) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "oxia:",
        "oxia://",
        "oxia:///ns",
        "oxia://:6648/ns",
        "oxia://a,,b/ns",
        "oxia://a:port/ns",
        "oxia://a:0/ns",
        "oxia://a:65536/ns",
        "oxia://a/ns/more",
        "oxia://a/ns?x=1",
        "oxia://a/ns#x",
        "oxia://user@a/ns",
        "oxia://[::1/ns",
        "http://a:6648/ns",
        "a:6648",
    ],
)
def test_anything_else_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected oxia://host\[:6648\]"):
        parse_oxia_url(url)
