import pytest
from confluent_kafka import KafkaError

from forebay.kafka_client.connection import exit_code_of


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, 5),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 5),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, 5),
        (KafkaError.SASL_AUTHENTICATION_FAILED, 5),
        (KafkaError.POLICY_VIOLATION, 5),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 4),
        (KafkaError.GROUP_ID_NOT_FOUND, 4),
        (KafkaError._TRANSPORT, 3),
        (KafkaError.INVALID_CONFIG, 2),
        (KafkaError.INVALID_GROUP_ID, 2),
        (KafkaError._TIMED_OUT, 124),
        (KafkaError.NON_EMPTY_GROUP, 1),
        (KafkaError.UNKNOWN, 1),
    ],
)
def test_an_error_of_kafka_has_an_exit_code_of_the_table(code: int, expected: int) -> None:
    assert exit_code_of(KafkaError(code)) == expected
