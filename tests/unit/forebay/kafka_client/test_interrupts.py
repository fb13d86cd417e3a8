import os
import signal
import threading

import pytest
from confluent_kafka import KafkaError

from forebay.kafka_client.connection import PatientConsumer, PatientProducer, interrupted_between_calls, interruptible

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "reconnect.backoff.max.ms": 100}
WITHIN_S = 30.0
POLL_S = 0.5
POLLS_MAX = 60


def poll_on(consumer: PatientConsumer) -> None:
    for _ in range(POLLS_MAX):
        consumer.poll(POLL_S)


def test_ctrl_c_in_a_callback_interrupts_behind_the_call() -> None:
    came_back = []

    def lost(_: KafkaError) -> None:
        if not came_back:
            os.kill(os.getpid(), signal.SIGINT)
            came_back.append(True)

    consumer = PatientConsumer({**NOBODY, "group.id": "g", "error_cb": lost})

    with pytest.raises(KeyboardInterrupt), interrupted_between_calls():
        poll_on(consumer)

    assert came_back == [True]
    consumer.close()


def test_what_was_delivered_is_counted_though_ctrl_c_came_meanwhile() -> None:
    counted = []

    def delivered(error: KafkaError, _: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        counted.append(error.code())

    producer = PatientProducer({**NOBODY, "message.timeout.ms": 100})
    producer.produce("t", b"v", on_delivery=delivered)

    with pytest.raises(KeyboardInterrupt), interrupted_between_calls():
        producer.flush(WITHIN_S)

    assert counted == [KafkaError._MSG_TIMED_OUT]


def test_ctrl_c_between_calls_and_the_second_within_interrupt_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)

    def insisting(_: KafkaError) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second interrupts")

    consumer = PatientConsumer({**NOBODY, "group.id": "g"})
    with pytest.raises(KeyboardInterrupt), interrupted_between_calls():
        os.kill(os.getpid(), signal.SIGINT)
    impatient = PatientProducer({**NOBODY, "error_cb": insisting})
    with pytest.raises((KeyboardInterrupt, SystemError)), interrupted_between_calls():
        impatient.poll(WITHIN_S)

    assert signal.getsignal(signal.SIGINT) is before
    consumer.close()


def test_a_long_call_gives_what_it_returns_and_raises_what_it_raises() -> None:
    assert interruptible(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_a_long_call_is_left_at_once_when_somebody_interrupts() -> None:
    answered, ended = threading.Event(), threading.Event()

    def call() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does; a signal for this thread alone would wake nobody
        answered.wait(WITHIN_S)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        interruptible(call)
    assert not ended.is_set(), "it was waited for"
    answered.set()
    assert ended.wait(WITHIN_S)
