from types import SimpleNamespace
from typing import cast

import pytest
import typer
from typer.testing import CliRunner

from forebay.cli import application
from forebay.commands.generate.commands import COMPLETION_SCRIPTS
from forebay.kafka_client.options import topic_names


@pytest.mark.parametrize("shell", COMPLETION_SCRIPTS)
def test_each_shell_has_a_script_that_asks_forebay(shell: str) -> None:
    ended = CliRunner().invoke(application, ["generate", "completion", shell])

    assert (ended.exit_code, ended.stdout) == (0, COMPLETION_SCRIPTS[shell])
    assert f"_FOREBAY_COMPLETE=complete_{'zsh' if shell == 'zsh' else 'fish'}" in ended.stdout


def test_another_shell_is_a_usage_error() -> None:
    assert CliRunner().invoke(application, ["generate", "completion", "csh"]).exit_code == 2


def test_no_name_is_offered_that_a_shell_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["$(reboot)", "a;b", "a b", "`id`", "*", "-x", "a\nb", "a\x1b[2J", "=ls", "it's", "orders.v1", "größe"]
    asked = SimpleNamespace(admin=lambda: None, metadata=lambda _: SimpleNamespace(topics=dict.fromkeys(names)))
    monkeypatch.setattr("forebay.kafka_client.connection.connect", lambda *_, **__: asked)

    assert topic_names(cast("typer.Context", SimpleNamespace(params={})), "") == ["größe", "orders.v1"]
