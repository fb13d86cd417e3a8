import sys

import msgspec
import pytest

from broker.protocol import support
from process.loop_watch import stacks


@pytest.mark.parametrize(
    ("filename", "api"),
    [
        ("broker/handlers/topics/metadata.py", "Metadata"),
        ("broker/handlers/configs/incremental_alter_configs.py", "IncrementalAlterConfigs"),
        ("broker/handling/record_checks.py", "Produce"),
        ("<decoder of DescribeConfigsRequest 4>", "DescribeConfigs"),
        ("<encoder of MetadataResponse 13>", "Metadata"),
        ("<decoder of NoSuchThingRequest 4>", "none"),
        ("broker/handling/errors.py", "none"),
        ("storage/log/append.py", "none"),
    ],
)
def test_code_says_which_api_it_serves(filename: str, api: str) -> None:
    assert stacks.api_of(filename) == api


def test_every_api_has_its_handler() -> None:
    assert {stacks.api_of(f"broker/handlers/{api.module}.py") for api in support.APIS} == {api.name for api in support.APIS}


def test_the_stack_begins_innermost_and_is_cut() -> None:
    def deeper(left: int) -> stacks.Seen:
        return deeper(left - 1) if left else stacks.seen(sys._getframe())

    seen = deeper(20)

    assert seen.api == "none"
    assert len(seen.stack) == stacks.FRAMES_MAX
    assert seen.stack[0].startswith("tests/unit/process/loop_watch/test_stacks.py:")
    assert seen.stack[0].endswith(" deeper")


def test_a_library_is_shown_from_its_package_on() -> None:
    assert stacks._shown(msgspec.__file__) == "msgspec/__init__.py"
    assert stacks._shown(sys.modules["asyncio"].__file__ or "") == "asyncio/__init__.py"


def test_a_thread_that_is_gone_has_no_stack() -> None:
    assert stacks.seen(None) == stacks.NOTHING_SEEN
