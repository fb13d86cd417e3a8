import pytest
from kio.index import load_request_schema
from kio.schema.api_versions import v0, v3, v4
from kio.schema.errors import ErrorCode

from broker.handlers.cluster import api_versions
from broker.protocol import apis, codec
from tests.unit.broker.handlers.asking import answered, cluster, error_of


@pytest.mark.parametrize("version", range(5))
async def test_the_answer_is_the_support_table_sorted_by_key(version: int) -> None:
    cls = load_request_schema(18, version)
    fields = {} if version < 3 else {"client_software_name": "apache-kafka-java", "client_software_version": "4.0.0"}
    async with cluster() as broker:
        answer = await broker.ask(api_versions.handle, cls(**fields))

    assert error_of(answer) is ErrorCode.none
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [
        (api.key, api.minimum, api.maximum) for api in sorted(apis.APIS)
    ]


@pytest.mark.parametrize(("name", "software_version"), [("", "1"), ("java client", "1"), ("-java", "1"), ("java", "1."), ("java", "")])
async def test_software_that_kip_511_does_not_allow_is_an_invalid_request(name: str, software_version: str) -> None:
    async with cluster() as broker:
        request = v3.ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
        answer = await broker.ask(api_versions.handle, request)

    assert error_of(answer) is ErrorCode.invalid_request


async def test_no_features_are_advertised() -> None:
    async with cluster() as broker:
        answer = await broker.ask(api_versions.handle, v4.ApiVersionsRequest(client_software_name="a", client_software_version="1"))

    assert (answer.supported_features, answer.finalized_features, answer.finalized_features_epoch) == ((), (), -1)


def test_a_version_we_do_not_know_is_answered_in_v0_with_the_versions_to_ask_with() -> None:
    answer = answered(v0.ApiVersionsRequest(), api_versions.unsupported_version())

    assert error_of(answer) is ErrorCode.unsupported_version
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(18, 0, 4)]
    assert codec.encode_response(18, 0, 7, api_versions.unsupported_version())
