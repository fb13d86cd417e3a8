import sys

import msgspec

from process import loop_watch


def nothing(_filename: str) -> None:
    """No file serves an API."""


def test_the_innermost_file_that_serves_an_api_names_it() -> None:
    here = "tests/unit/process/loop_watch/test_stacks.py"

    assert loop_watch.seen(sys._getframe(), {here: "Fetch"}.get).api == "Fetch"


def test_the_stack_begins_innermost_and_is_cut() -> None:
    def deeper(left: int) -> loop_watch.SampledStack:
        return deeper(left - 1) if left else loop_watch.seen(sys._getframe(), nothing)

    seen = deeper(20)

    assert seen.api == "none"
    assert len(seen.stack) == loop_watch.FRAMES_MAX
    assert seen.stack[0].startswith("tests/unit/process/loop_watch/test_stacks.py:")
    assert seen.stack[0].endswith(" deeper")


def test_a_library_is_shown_from_its_package_on() -> None:
    assert loop_watch._shown(msgspec.__file__) == "msgspec/__init__.py"
    assert loop_watch._shown(sys.modules["asyncio"].__file__ or "") == "asyncio/__init__.py"


def test_a_thread_that_is_gone_has_no_stack() -> None:
    assert loop_watch.seen(None, nothing) == loop_watch.NOTHING_SEEN


def test_what_is_no_frame_ends_the_stack() -> None:
    here = test_what_is_no_frame_ends_the_stack.__code__

    assert loop_watch.seen(here, nothing) == loop_watch.NOTHING_SEEN  # type: ignore[arg-type]
