from pathlib import Path

from storage.metadata.oxia.nodes import LOOK_AGAIN_S, Token
from tests.kit.stepping_clock import SteppingClock


def test_a_token_that_is_replaced_is_used_soon(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", SteppingClock()
    path.write_text("first")
    token = Token(str(path), clock=clock)
    path.write_text("second\n")

    assert token.metadata() == (("authorization", "Bearer first"),)
    clock.advance(LOOK_AGAIN_S)
    assert token.metadata() == (("authorization", "Bearer second"),)


def test_a_token_whose_file_is_gone_for_a_moment_is_used_on(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", SteppingClock()
    path.write_text("first")
    token = Token(str(path), clock=clock)
    path.unlink()
    clock.advance(LOOK_AGAIN_S)

    assert token.metadata() == (("authorization", "Bearer first"),)
    path.write_text("second")
    clock.advance(LOOK_AGAIN_S)
    assert token.metadata() == (("authorization", "Bearer second"),)
