import pytest

from broker.protocol import apis, codec
from broker.protocol.apis import Api


def api(name: str) -> Api:
    return next(api for api in apis.APIS if api.name == name)


def request_versions(name: str) -> dict[int, int]:
    served = api(name)
    return {version: codec.request_shape(served, version).cls.__version__ for version in range(served.served_minimum, served.maximum + 1)}


def response_versions(name: str) -> dict[int, int]:
    served = api(name)
    return {version: codec.response_shape(served, version).cls.__version__ for version in range(served.served_minimum, served.maximum + 1)}


@pytest.mark.parametrize(
    "name",
    ["ListOffsets", "ApiVersions", "CreateTopics", "InitProducerId", "OffsetForLeaderEpoch", "DescribeConfigs", "DescribeCluster"],
)
def test_an_api_that_only_gained_fields_has_one_shape(name: str) -> None:
    assert set(request_versions(name).values()) == {api(name).maximum}
    assert set(response_versions(name).values()) == {api(name).maximum}


def test_a_request_that_lost_a_field_keeps_it_in_an_older_shape() -> None:
    assert request_versions("FindCoordinator") == {0: 3, 1: 3, 2: 3, 3: 3, 4: 6, 5: 6, 6: 6}
    assert request_versions("DeleteTopics") == {1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 6}


def test_metadata_v8_to_v10_carry_the_flag_that_only_they_have() -> None:
    assert request_versions("Metadata") == {version: 10 if 8 <= version <= 10 else 13 for version in range(14)}


def test_a_response_that_lost_a_field_without_a_default_keeps_an_older_shape() -> None:
    assert response_versions("FindCoordinator") == {0: 3, 1: 3, 2: 3, 3: 3, 4: 6, 5: 6, 6: 6}


def test_a_response_that_lost_a_field_with_a_default_is_built_as_the_newest() -> None:
    assert set(response_versions("Metadata").values()) == {13}
