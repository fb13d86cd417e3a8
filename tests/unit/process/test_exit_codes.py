import errno
import os
from pathlib import Path

from process.exit_codes import Explanation, explain
from process.settings.errors import StartError
from storage.errors import Conflict, IncompatibleFormat, Unavailable


def test_errors_an_operator_can_act_on_have_words_and_a_code() -> None:
    assert explain(StartError("no", exit_code=1)) == Explanation("no", 1)
    assert explain(IncompatibleFormat("newer")) == Explanation("newer", 2)
    assert explain(Unavailable("away")) == Explanation("away", 3)


def test_the_reason_is_found_inside_the_groups_of_tasks() -> None:
    group = BaseExceptionGroup("", [ValueError(), ExceptionGroup("", [KeyError(), StartError("no", exit_code=2)])])

    assert explain(group) == Explanation("no", 2)


def test_a_place_that_may_not_be_used_is_named_with_the_user_and_a_fix(tmp_path: Path) -> None:
    place = tmp_path / "spool"
    for code, fix in ((errno.EACCES, "Give this user access to it"), (errno.ENOSPC, "Put it right, or choose another")):
        explanation = explain(ExceptionGroup("", [OSError(code, os.strerror(code), str(place))]))

        assert explanation is not None
        assert explanation.exit_code == 3
        assert explanation.message.startswith(f"{place}: {os.strerror(code)} as uid {os.geteuid()}. {fix}")


def test_a_bug_has_no_explanation() -> None:
    assert explain(ValueError("x")) is None
    assert explain(Conflict("x")) is None
    assert explain(OSError(errno.ENOENT, "no such file", "module.py")) is None
    assert explain(OSError(errno.EACCES, "of no file")) is None
