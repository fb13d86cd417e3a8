from broker.cluster.registration import QUIET_S, THROTTLE_MS, Leaving
from tests.unit.process.http.manual_clock import ManualClock


def test_nothing_is_said_until_clients_are_asked_to_leave() -> None:
    leaving = Leaving(clock=ManualClock())
    before = leaving.throttle_ms("a"), leaving.is_refusing
    leaving.ask()
    asking = leaving.throttle_ms("a"), leaving.is_refusing
    leaving.refuse()

    assert before == (0, False)
    assert asking == (THROTTLE_MS, False)
    assert (leaving.throttle_ms("a"), leaving.is_refusing) == (THROTTLE_MS, True)


def test_a_client_has_understood_when_it_is_silent_after_its_last_answer_and_its_last_request() -> None:
    clock = ManualClock()
    leaving = Leaving(clock=clock)
    leaving.ask()
    leaving.throttle_ms("a")
    clock.advance(QUIET_S * 0.6)
    received_s = clock.monotonic_s()
    clock.advance(QUIET_S * 0.6)
    after_answer = leaving.has_understood("a", last_received_s=received_s), leaving.is_under_way("a", last_received_s=received_s)
    clock.advance(QUIET_S * 0.6)

    assert after_answer == (False, True)
    assert leaving.has_understood("a", last_received_s=received_s)
    assert not leaving.is_under_way("a", last_received_s=received_s)


def test_a_client_that_was_not_asked_has_neither_understood_nor_anything_under_way() -> None:
    leaving = Leaving(clock=ManualClock())
    leaving.ask()
    leaving.throttle_ms("a")
    leaving.forget("a")

    for connection in ("a", "b"):
        assert not leaving.has_understood(connection, last_received_s=0.0)
        assert not leaving.is_under_way(connection, last_received_s=0.0)


def test_a_throttle_lasts_until_the_connection_is_closed() -> None:
    assert THROTTLE_MS / 1_000 > 2 * QUIET_S
