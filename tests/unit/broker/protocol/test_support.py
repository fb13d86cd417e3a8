import pytest
from kio.schema.index import api_key_map, schema_name_map

from broker.protocol import apis
from broker.protocol.apis import APIS, Api


def test_apis_are_in_the_order_of_their_keys() -> None:
    assert [api.key for api in APIS] == sorted(api.key for api in APIS)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_version_served_has_a_schema_and_kafka_s_name(api: Api) -> None:
    versions = schema_name_map[api_key_map[api.key]]

    assert set(range(api.served_minimum, api.maximum + 1)) <= set(versions)
    assert api.name == "".join(word.capitalize() for word in api_key_map[api.key].split("_"))


def test_produce_is_advertised_from_0_and_served_from_3() -> None:
    produce = apis.find(0)

    assert produce is not None
    assert produce.minimum == 0
    assert not apis.is_served(0, 2)
    assert apis.is_served(0, 3)


def test_an_unknown_key_is_neither_found_nor_served() -> None:
    assert apis.find(999) is None
    assert not apis.is_served(999, 0)


def test_versions_outside_the_range_are_not_served() -> None:
    assert not apis.is_served(1, 3)
    assert apis.is_served(1, 17)
    assert not apis.is_served(1, 18)
    assert not apis.is_served(1, -1)
