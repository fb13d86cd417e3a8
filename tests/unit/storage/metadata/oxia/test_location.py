import re

import pytest

from storage.metadata.oxia.location import OxiaAccess, OxiaLocation, parse_oxia_url


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


@pytest.mark.parametrize(
    ("parameters", "access"),
    [
        ("tls=true", OxiaAccess(tls=True)),
        ("tls=true&ca_file=/etc/ca.pem&server_name=oxia", OxiaAccess(tls=True, ca_file="/etc/ca.pem", server_name="oxia")),
        ("tls=true&cert_file=a%20b&key_file=k", OxiaAccess(tls=True, cert_file="a b", key_file="k")),
        ("tls=true&token_file=/run/token", OxiaAccess(tls=True, token_file="/run/token")),
        ("tls=false&token_file=/run/token", OxiaAccess(token_file="/run/token")),
        ("tls=false", OxiaAccess()),
    ],
)
def test_a_url_says_how_its_nodes_are_spoken_to(parameters: str, access: OxiaAccess) -> None:
    location = parse_oxia_url(f"oxia://a/ns?{parameters}")

    assert location == OxiaLocation("a", 6648, "ns", access=access)
    assert parse_oxia_url(str(location)) == location


def test_a_location_is_written_as_its_url() -> None:
    location = parse_oxia_url("oxia://a:1,[::1]/ns")

    assert location.addresses == ("a:1", "[::1]:6648")
    assert str(location) == "oxia://a:1,[::1]:6648/ns"
    assert parse_oxia_url(str(location)) == location


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ("tls=yes", "tls='yes': expected true or false"),
        ("tlss=true", "'tlss' is not a parameter of an oxia:// URL: did you mean tls?"),
        ("x=1", "'x' is not a parameter of an oxia:// URL: there are tls, ca_file"),
        ("tls=true&tls=true", "tls is given twice"),
        ("tls=true&ca_file=", "ca_file is empty"),
        ("ca_file=/etc/ca.pem", "ca_file means nothing without tls=true"),
        ("tls=false&server_name=a", "server_name means nothing without tls=true"),
        ("tls=true&cert_file=a", "cert_file and key_file go together"),
        ("token_file=a", "token_file without TLS would send the token readable by all on the way: add tls=true, or tls=false if"),
        ("token=tell-nobody", "takes no secrets: write the token into a file and name that by token_file"),
    ],
)
def test_parameters_that_cannot_be_meant_are_refused_with_the_fix(parameters: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)) as refused:
        parse_oxia_url(f"oxia://a/ns?{parameters}")
    assert "tell-nobody" not in str(refused.value)


def test_a_password_is_in_no_message() -> None:
    with pytest.raises(ValueError, match="takes no secrets") as refused:
        parse_oxia_url("oxia://user:tell-nobody@a/ns")
    assert "tell-nobody" not in str(refused.value)


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
