from forebay.processes.worker import RestartBackoff


def test_each_pause_is_twice_the_last_up_to_the_limit() -> None:
    backoff = RestartBackoff(first_s=0.5, max_s=3.0, forgotten_after_s=60.0)

    assert [backoff.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_long_life_makes_up_for_earlier_deaths() -> None:
    backoff = RestartBackoff(first_s=0.5, max_s=3.0, forgotten_after_s=60.0)

    pauses = [backoff.after(ran_s) for ran_s in (0.0, 0.0, 60.0, 0.0)]

    assert pauses == [0.5, 1.0, 0.5, 1.0]
