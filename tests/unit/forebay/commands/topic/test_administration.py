from types import SimpleNamespace

from confluent_kafka import Uuid

from forebay.commands.topic.administration import id_of


def test_a_topic_id_is_written_as_kafka_writes_it() -> None:
    described = SimpleNamespace(topic_id=Uuid(-1, -5))

    assert id_of(described) == "_" * 20 + "-w"
