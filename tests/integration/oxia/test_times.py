from process.store_clocks import MetadataClock
from services.oxia import OxiaServer
from storage.metadata.keys import probe
from storage.metadata.port import Put, TellsTime
from tests.integration.oxia.opening import clock, opened

MINUTE_MS = 60_000


async def test_the_time_of_a_record_is_when_it_was_put_last(oxia_server: OxiaServer) -> None:
    async with opened(oxia_server.url) as store:
        assert isinstance(store, TellsTime)
        absent_ms = await store.put_ms(probe(77))
        ahead_ms = await MetadataClock(store, store, lambda: 77, clock).ahead_ms()
        await store.write([Put(probe(78), b"", None)])
        first_ms = await store.put_ms(probe(78))
        await store.write([Put(probe(78), b"", None)])
        second_ms = await store.put_ms(probe(78))

    assert absent_ms is None
    assert ahead_ms is not None
    assert abs(ahead_ms) < MINUTE_MS
    assert first_ms is not None
    assert second_ms is not None
    assert abs(first_ms - clock.now_ms()) < MINUTE_MS
    assert second_ms >= first_ms
