import pytest

from broker.protocol import apis
from broker.protocol.apis import api_of_file


@pytest.mark.parametrize(
    ("filename", "api"),
    [
        ("broker/handlers/topics/metadata.py", "Metadata"),
        ("broker/handlers/configs/incremental_alter_configs.py", "IncrementalAlterConfigs"),
        ("broker/handling/validation.py", "Produce"),
        ("<decoder of DescribeConfigsRequest 4>", "DescribeConfigs"),
        ("<encoder of MetadataResponse 13>", "Metadata"),
        ("<decoder of NoSuchThingRequest 4>", None),
        ("broker/handling/errors.py", None),
        ("storage/log/writer.py", None),
    ],
)
def test_code_says_which_api_it_serves(filename: str, api: str | None) -> None:
    assert api_of_file(filename) == api


def test_every_api_has_its_handler() -> None:
    assert {api_of_file(f"broker/handlers/{api.module.replace('.', '/')}.py") for api in apis.APIS} == {api.name for api in apis.APIS}
