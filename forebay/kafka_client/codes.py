"""The errors of Kafka and of its client library as exit codes."""

from typing import Final

from confluent_kafka import KafkaError

from forebay.kafka_client.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_TIMED_OUT, EXIT_UNREACHABLE, EXIT_USAGE

UNKNOWN_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
)
NO_ANSWER: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT}  # noqa: SLF001
)
"""No broker said this: the client library gave up."""

_EXIT_CODES: Final = {
    EXIT_NOT_FOUND: {*UNKNOWN_TOPIC, KafkaError.GROUP_ID_NOT_FOUND},
    EXIT_UNREACHABLE: {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE},  # noqa: SLF001
    EXIT_TIMED_OUT: {KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT},  # noqa: SLF001
    EXIT_REFUSED: {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError.SECURITY_DISABLED,
        KafkaError.POLICY_VIOLATION,
    },
    EXIT_USAGE: {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_GROUP_ID,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    },
}


def exit_code_of(error: KafkaError) -> int:
    return next((exit_code for exit_code, codes in _EXIT_CODES.items() if error.code() in codes), EXIT_FAILED)
