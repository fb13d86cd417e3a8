"""Oxia and S3 away, refusing, slow or breaking off under load: nothing acknowledged is lost, nothing is invented, memory stays bounded,
and producers go on when it has healed.

`metadata.url` and `storage.url` of both brokers name proxies; the servers behind them are real.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from runtime.clock import SystemClock
from services.faults.plan import Fault, Rule
from tests.chaos.streams import NOT_INLINE_BYTES, Stream, create_topics, judge, read_all, running, wait_for_progress
from tests.kit.native import Native, native_services
from tests.kit.serving import Served

OUTAGE_S = 3.0
LONGER_THAN_A_SESSION_S = 15.0
RECOVERED_WITHIN_S = 60.0
"""On a busy machine; usually producers go on within seconds."""
RSS_BYTES_MAX = 400 * 2**20
AWAY_S, UNNOTICED_WITHIN_S = 4.0, 9.0
"""How long something is away that a producer does not need, and how long it may wait for an acknowledgement on a busy machine: less than
S3 takes when it takes ten seconds."""
PACE_S = 0.05
"""Between bursts of a producer: an outage meets as much under way, and is seen in a few hundred commits as well as in thousands."""
ALL_IN_ONE_COMMIT = {"batch.num.messages": 5}
"""Five batches, as many as an idempotent producer has under way, are less than a commit may carry. More would need an object."""

_clock = SystemClock()


@dataclass(frozen=True)
class Cluster:
    native: Native
    brokers: tuple[Served, Served]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        native_services(tmp_path_factory.mktemp("outages")) as native,
        native.broker(afresh=True) as first,
        native.broker(afresh=True) as second,
    ):
        yield Cluster(native, (first, second))


def _oxia_rule(native: Native, *rules: Rule) -> Iterator[None]:
    native.oxia_proxy.plan.add(*rules)
    try:
        yield
    finally:
        native.oxia_proxy.plan.clear()


def _s3_rule(native: Native, *rules: Rule) -> Iterator[None]:
    native.s3_proxy.plan.add(*rules)
    try:
        yield
    finally:
        native.s3_proxy.plan.clear()


def oxia_is_killed(native: Native) -> Iterator[None]:
    native.oxia.kill9()
    yield
    native.oxia.start()


def oxia_is_away_longer_than_a_session_lasts(native: Native) -> Iterator[None]:
    native.oxia.kill9()
    time.sleep(LONGER_THAN_A_SESSION_S - OUTAGE_S)
    yield
    native.oxia.start()


def oxia_hangs(native: Native) -> Iterator[None]:
    native.oxia.pause()
    yield
    native.oxia.resume()


def oxia_cannot_be_reached(native: Native) -> Iterator[None]:
    native.run_oxia(native.oxia_proxy.down())
    yield
    native.run_oxia(native.oxia_proxy.up())


def oxia_refuses_writes(native: Native) -> Iterator[None]:
    yield from _oxia_rule(native, Rule(Fault.REFUSE, methods={"Write"}))


def oxia_loses_every_third_reply(native: Native) -> Iterator[None]:
    yield from _oxia_rule(native, Rule(Fault.DROP_REPLY, methods={"Write"}, every=3))


def oxia_says_no_and_writes_later(native: Native) -> Iterator[None]:
    yield from _oxia_rule(native, Rule(Fault.LATE, methods={"Write"}, every=3, delay_s=0.1))


def s3_loses_every_third_reply(native: Native) -> Iterator[None]:
    yield from _s3_rule(native, Rule(Fault.DROP_REPLY, methods={"PUT"}, every=3))


def both_lose_every_third_reply(native: Native) -> Iterator[None]:
    native.s3_proxy.plan.add(Rule(Fault.DROP_REPLY, methods={"PUT"}, every=3))
    yield from _oxia_rule(native, Rule(Fault.DROP_REPLY, methods={"Write"}, every=3))
    native.s3_proxy.plan.clear()


def s3_is_killed(native: Native) -> Iterator[None]:
    native.s3.kill9()
    yield
    native.s3.start()


def s3_is_overloaded(native: Native) -> Iterator[None]:
    yield from _s3_rule(native, Rule(Fault.ANSWER, status=503, code="SlowDown"))


def s3_forbids(native: Native) -> Iterator[None]:
    yield from _s3_rule(native, Rule(Fault.ANSWER, status=403, code="AccessDenied"))


def s3_has_lost_the_bucket(native: Native) -> Iterator[None]:
    yield from _s3_rule(native, Rule(Fault.ANSWER, status=404, code="NoSuchBucket"))


def s3_takes_ten_seconds(native: Native) -> Iterator[None]:
    yield from _s3_rule(native, Rule(Fault.DELAY, delay_s=10.0))


def s3_breaks_off_mid_body(native: Native) -> Iterator[None]:
    yield from _s3_rule(
        native, Rule(Fault.CUT_REQUEST, methods={"PUT"}, body_bytes=100), Rule(Fault.CUT_REPLY, methods={"GET"}, body_bytes=100)
    )


def both_are_killed(native: Native) -> Iterator[None]:
    native.oxia.kill9()
    native.s3.kill9()
    yield
    native.s3.start()
    native.oxia.start()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "outage",
    [
        oxia_is_killed,
        oxia_is_away_longer_than_a_session_lasts,
        oxia_hangs,
        pytest.param(oxia_cannot_be_reached, marks=[pytest.mark.slow, pytest.mark.long]),
        oxia_refuses_writes,
        oxia_loses_every_third_reply,
        pytest.param(oxia_says_no_and_writes_later, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(s3_loses_every_third_reply, marks=[pytest.mark.slow, pytest.mark.long]),
        both_lose_every_third_reply,
        s3_is_killed,
        pytest.param(s3_is_overloaded, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(s3_forbids, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(s3_has_lost_the_bucket, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(s3_takes_ten_seconds, marks=[pytest.mark.slow, pytest.mark.long]),
        s3_breaks_off_mid_body,
        both_are_killed,
    ],
    ids=lambda outage: outage.__name__,
)
def test_an_outage_loses_nothing_invents_nothing_and_is_over_when_it_is_healed(
    cluster: Cluster, outage: Callable[[Native], Iterator[None]]
) -> None:
    names = f"{outage.__name__}-idempotent", f"{outage.__name__}-plain"
    create_topics(cluster.bootstrap, *names)
    streams = [
        Stream(cluster.bootstrap, names[0], idempotent=True, value_bytes=NOT_INLINE_BYTES, pace_s=PACE_S),
        Stream(cluster.bootstrap, names[1], idempotent=False, pace_s=PACE_S),
    ]
    with running(streams):
        wait_for_progress(streams, within_s=RECOVERED_WITHIN_S)
        with contextlib.contextmanager(outage)(cluster.native):
            time.sleep(OUTAGE_S)  # the length of the outage, not a wait for anything
        wait_for_progress(streams, within_s=RECOVERED_WITHIN_S)

    for stream in streams:
        judge(stream, cluster.bootstrap)
    for broker in cluster.brokers:
        assert broker.is_alive
        assert broker.peak_rss_bytes() < RSS_BYTES_MAX


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "outage",
    [s3_is_killed, pytest.param(s3_takes_ten_seconds, marks=[pytest.mark.slow, pytest.mark.long])],
    ids=lambda outage: outage.__name__,
)
def test_producers_whose_batches_go_early_do_not_notice_that_s3_is_away(
    cluster: Cluster, outage: Callable[[Native], Iterator[None]]
) -> None:
    with cluster.native.broker(afresh=True) as broker:
        names = f"small-{outage.__name__}-idempotent", f"small-{outage.__name__}-plain"
        create_topics(broker.bootstrap, *names)
        streams = [
            Stream(broker.bootstrap, names[0], idempotent=True, settings=ALL_IN_ONE_COMMIT, pace_s=PACE_S),
            Stream(broker.bootstrap, names[1], idempotent=False, settings=ALL_IN_ONE_COMMIT, pace_s=PACE_S),
        ]
        with running(streams):
            wait_for_progress(streams, within_s=RECOVERED_WITHIN_S)
            with contextlib.contextmanager(outage)(cluster.native):
                until_s = _clock.monotonic_s() + AWAY_S
                while _clock.monotonic_s() < until_s:
                    wait_for_progress(streams, within_s=UNNOTICED_WITHIN_S)
                acked = [dict(stream.acked) for stream in streams]
                found = [read_all(broker.bootstrap, name) for name in names]
        for stream, before, records in zip(streams, acked, found, strict=True):
            there = {(partition, offset): number for partition, run in records.items() for offset, number in run}
            assert before.items() <= there.items(), "what was acknowledged meanwhile was read meanwhile"
            judge(stream, broker.bootstrap)
