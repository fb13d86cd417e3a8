from process.loop_watch import HELD_S_MIN, Held, LoopReading, judge

DUE_S = 100.0
BEFORE = LoopReading(DUE_S - 0.05, 7.0, 3.0, 1.0)


def judged(*, late_s: float, cpu_s: float = 0.0, waited_s: float = 0.0, gc_s: float = 0.0, unseen_s: float = 0.0) -> Held | None:
    after = LoopReading(DUE_S + late_s, BEFORE.cpu_s + cpu_s, BEFORE.waited_s + waited_s, BEFORE.gc_s + gc_s)
    return judge(BEFORE, after, due_s=DUE_S, unseen_s=unseen_s)


def held_ms(held: Held | None) -> int:
    return 0 if held is None else round(held.held_s * 1_000)


def test_a_loop_that_computes_is_held() -> None:
    assert held_ms(judged(late_s=0.3, cpu_s=0.3)) == 300


def test_a_loop_that_sleeps_is_held_although_it_uses_no_cpu() -> None:
    assert held_ms(judged(late_s=0.3)) == 300


def test_what_it_waited_for_a_processor_is_taken_off() -> None:
    assert held_ms(judged(late_s=0.3, cpu_s=0.1, waited_s=0.2)) == 100
    assert judged(late_s=0.3, waited_s=0.3) is None


def test_a_process_that_was_stopped_as_a_whole_was_not_held() -> None:
    assert judged(late_s=30.0, cpu_s=0.001, unseen_s=29.95) is None


def test_a_call_that_lets_no_other_thread_look_is_held_for_as_long_as_it_computes() -> None:
    assert held_ms(judged(late_s=1.0, cpu_s=0.99, unseen_s=0.95)) == 990


def test_a_collection_in_another_thread_counts_although_nobody_could_look() -> None:
    assert held_ms(judged(late_s=0.4, gc_s=0.4, unseen_s=0.4)) == 400


def test_cpu_before_the_beat_was_due_makes_it_no_later() -> None:
    assert held_ms(judged(late_s=0.1, cpu_s=0.15)) == 100


def test_little_lateness_is_no_news() -> None:
    assert judged(late_s=HELD_S_MIN / 2, cpu_s=HELD_S_MIN / 2) is None
    assert judged(late_s=0.0) is None


def test_it_says_how_the_lateness_came_about() -> None:
    held = judged(late_s=0.5, cpu_s=0.25, waited_s=0.125, gc_s=0.0625)

    assert held == Held(0.375, 0.5, 0.25, 0.125, 0.0625)
