from broker.cluster.registration import QUIET_S, THROTTLE_MS, ControlledShutdown
from tests.unit.process.http.manual_clock import ManualClock


def test_nothing_is_said_until_clients_are_asked_to_leave() -> None:
    controlled_shutdown = ControlledShutdown(clock=ManualClock())
    before = controlled_shutdown.throttle_ms("a"), controlled_shutdown.is_refusing
    controlled_shutdown.ask()
    asking = controlled_shutdown.throttle_ms("a"), controlled_shutdown.is_refusing
    controlled_shutdown.refuse()

    assert before == (0, False)
    assert asking == (THROTTLE_MS, False)
    assert (controlled_shutdown.throttle_ms("a"), controlled_shutdown.is_refusing) == (THROTTLE_MS, True)


def test_a_client_has_understood_when_it_is_silent_after_its_last_answer_and_its_last_request() -> None:
    clock = ManualClock()
    controlled_shutdown = ControlledShutdown(clock=clock)
    controlled_shutdown.ask()
    controlled_shutdown.throttle_ms("a")
    clock.advance(QUIET_S * 0.6)
    received_s = clock.monotonic_s()
    clock.advance(QUIET_S * 0.6)
    after_answer = (
        controlled_shutdown.has_understood("a", last_received_s=received_s),
        controlled_shutdown.is_under_way("a", last_received_s=received_s),
    )
    clock.advance(QUIET_S * 0.6)

    assert after_answer == (False, True)
    assert controlled_shutdown.has_understood("a", last_received_s=received_s)
    assert not controlled_shutdown.is_under_way("a", last_received_s=received_s)


def test_a_client_that_was_not_asked_has_neither_understood_nor_anything_under_way() -> None:
    controlled_shutdown = ControlledShutdown(clock=ManualClock())
    controlled_shutdown.ask()
    controlled_shutdown.throttle_ms("a")
    controlled_shutdown.forget("a")

    for connection in ("a", "b"):
        assert not controlled_shutdown.has_understood(connection, last_received_s=0.0)
        assert not controlled_shutdown.is_under_way(connection, last_received_s=0.0)


def test_a_throttle_lasts_until_the_connection_is_closed() -> None:
    assert THROTTLE_MS / 1_000 > 2 * QUIET_S
