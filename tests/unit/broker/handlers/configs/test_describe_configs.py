from dataclasses import fields
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.groups.state import GroupSettings, group_settings
from broker.handlers.configs import describe_configs
from broker.limits import BrokerLimits
from process.settings.model import Settings
from storage.catalog.topic_configs import TOPIC_CONFIGS
from tests.unit.broker.handlers.asking import INTERNAL, Cluster, cluster, error_of

TOPIC, BROKER = 2, 4


async def ask(
    broker: Cluster, *resources: tuple[int, str], keys: tuple[str, ...] | None = None, version: int = 4, **fields: bool
) -> list[Any]:
    cls = load_request_schema(32, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = tuple(
        module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys) for kind, name in resources
    )
    answer = await broker.ask(describe_configs.handle, cls(resources=asked, **fields), listener=INTERNAL)
    assert [(found.resource_type, found.resource_name) for found in answer.results] == list(resources)
    return list(answer.results)


def by_name(result: Any) -> dict[str, Any]:
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topic_is_described_with_every_key(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        (result,) = await ask(broker, (TOPIC, "t"), version=version)

    configs = by_name(result)
    assert (error_of(result), result.error_message) == (ErrorCode.none, None)
    assert set(configs) == set(TOPIC_CONFIGS)
    assert not any(config.read_only or config.is_sensitive or config.synonyms for config in configs.values())
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    if version >= 3:
        assert (configs["retention.ms"].config_type, configs["cleanup.policy"].config_type) == (5, 7)
        assert configs["retention.ms"].documentation is None


async def test_synonyms_and_documentation_are_given_when_asked_for() -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        (result,) = await ask(broker, (TOPIC, "t"), include_synonyms=True, include_documentation=True)

    configs = by_name(result)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in configs["retention.ms"].synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "604800000", 5),
    ]
    assert [synonym.name for synonym in configs["cleanup.policy"].synonyms] == ["log.cleanup.policy"]
    assert all(config.documentation for config in configs.values())
    assert configs["delete.retention.ms"].documentation.startswith("Kept, not yet enforced: ")


@pytest.mark.parametrize(("keys", "count"), [(None, len(TOPIC_CONFIGS)), ((), len(TOPIC_CONFIGS)), (("retention.ms", "nonsense"), 1)])
async def test_keys_narrow_the_answer(keys: tuple[str, ...] | None, count: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        (result,) = await ask(broker, (TOPIC, "t"), keys=keys)

    assert len(result.configs) == count


async def test_this_broker_is_described_read_only() -> None:
    async with cluster(broker_id=3, auto_create=False, partition_count=8) as broker:
        (result,) = await ask(broker, (BROKER, "3"), include_synonyms=True, include_documentation=True)

    configs = by_name(result)
    assert error_of(result) is ErrorCode.none
    assert [config.name for config in result.configs] == sorted(configs)
    assert all(config.read_only and config.documentation for config in configs.values())
    assert {
        name: configs[name].value for name in ("broker.id", "node.id", "num.partitions", "auto.create.topics.enable", "broker.rack")
    } == {
        "broker.id": "3",
        "node.id": "3",
        "num.partitions": "8",
        "auto.create.topics.enable": "false",
        "broker.rack": "zone-a",
    }
    assert configs["advertised.listeners"].value == "PLAINTEXT://broker-3:9003,INTERNAL://internal:7"
    assert (configs["broker.id"].config_source, configs["log.retention.ms"].config_source) == (4, 5)
    assert (configs["log.retention.ms"].value, configs["message.max.bytes"].value) == ("604800000", "1048588")


async def test_what_tools_look_for_in_a_broker_is_there() -> None:
    async with cluster() as broker:
        (result,) = await ask(broker, (BROKER, "1"), include_synonyms=True)

    configs = by_name(result)
    assert {
        "authorizer.class.name": "",
        "compression.type": "producer",
        "default.replication.factor": "1",
        "delete.topic.enable": "true",
        "fetch.max.bytes": "8388608",
        "inter.broker.protocol.version": "4.0",
        "log.cleanup.policy": "delete",
        "log.dirs": "object-store",
        "log.retention.bytes": "-1",
        "log.retention.hours": "168",
        "log.segment.bytes": "1073741824",
        "message.max.bytes": "1048588",
        "min.insync.replicas": "1",
        "process.roles": "broker",
        "remote.log.storage.system.enable": "false",
        "sasl.enabled.mechanisms": "",
        "unclean.leader.election.enable": "false",
    }.items() <= {name: config.value for name, config in configs.items()}.items()
    assert all([synonym.name for synonym in config.synonyms] == [name] for name, config in configs.items())
    assert len(configs) == len(result.configs)


async def test_the_cluster_wide_defaults_of_brokers_are_none() -> None:
    async with cluster() as broker:
        (result,) = await ask(broker, (BROKER, ""))

    assert (error_of(result), result.configs) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ((TOPIC, "nothing"), ErrorCode.unknown_topic_or_partition),
        ((TOPIC, "no/name"), ErrorCode.invalid_topic_exception),
        ((BROKER, "2"), ErrorCode.invalid_request),
        ((BROKER, "one"), ErrorCode.invalid_request),
        ((BROKER, "-1"), ErrorCode.invalid_request),
        ((BROKER, "9" * 10_000), ErrorCode.invalid_request),
        ((0, "x"), ErrorCode.invalid_request),
        ((8, "1"), ErrorCode.invalid_request),
        ((16, "x"), ErrorCode.invalid_request),
        ((32, ""), ErrorCode.invalid_request),
    ],
)
async def test_what_cannot_be_described_is_said_and_does_not_spoil_the_rest(resource: tuple[int, str], code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")
        refused, described = await ask(broker, resource, (TOPIC, "t"))

    assert (error_of(refused), refused.configs) == (code, ())
    assert refused.error_message
    assert error_of(described) is ErrorCode.none


async def test_a_group_has_no_configs() -> None:
    async with cluster() as broker:
        (result,) = await ask(broker, (32, "group"))

    assert (error_of(result), result.error_message, result.configs) == (ErrorCode.none, None, ())


async def test_what_is_set_for_groups_is_told_by_kafka_s_names() -> None:
    values = {
        "session_timeout_min": "5s",
        "session_timeout_max": "40m",
        "initial_rebalance_delay": "250ms",
        "max_size": 77,
        "offset_metadata_max_size": "1KiB",
        "offsets_retention": "90m",
        "offsets_retention_check_interval": "30s",
    }
    settings = Settings.model_validate({"groups": values})
    async with cluster(group_settings=group_settings(settings.groups)) as broker:
        (result,) = await ask(broker, (BROKER, "1"))

    ours_alone = {"member_max_size", "memory_bytes"}
    assert set(values) | ours_alone == {field.name for field in fields(settings.groups)}
    assert {config.name: config.value for config in result.configs if config.name.startswith(("group.", "offset"))} == {
        "group.coordinator.rebalance.protocols": "classic",
        "group.initial.rebalance.delay.ms": "250",
        "group.max.session.timeout.ms": "2400000",
        "group.max.size": "77",
        "group.min.session.timeout.ms": "5000",
        "offset.metadata.max.bytes": "1024",
        "offsets.retention.check.interval.ms": "30000",
        "offsets.retention.minutes": "90",
    }


async def test_without_settings_groups_are_kafka_s_but_for_their_size() -> None:
    shared = Settings.model_validate({"storage": {"url": "s3://bucket"}, "metadata": {"url": "oxia://h:6648/default"}})
    embedded = Settings()

    assert group_settings(shared.groups) == GroupSettings()
    assert group_settings(embedded.groups) == GroupSettings(initial_delay_s=0)


async def test_a_store_that_does_not_answer_is_retriable() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True
        results = await ask(broker, (TOPIC, "t"), (BROKER, "1"))

    assert [error_of(result) for result in results] == [ErrorCode.kafka_storage_error] * 2


async def test_a_resource_that_is_named_again_is_described_once_with_all_keys_that_were_asked_for() -> None:
    module = __import__(load_request_schema(32, 4).__module__, fromlist=["x"])

    async def keys_of(*asked: tuple[str, ...] | None) -> set[str]:
        named = tuple(module.DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=keys) for keys in asked)
        answer = await broker.ask(describe_configs.handle, load_request_schema(32, 4)(resources=named), listener=INTERNAL)
        (result,) = answer.results
        return set(by_name(result))

    async with cluster() as broker:
        await broker.create("t")
        some = await keys_of(("retention.ms",), ("cleanup.policy",), ("retention.ms",))
        everything = await keys_of(("retention.ms",), None, ("cleanup.policy",))

    assert some == {"retention.ms", "cleanup.policy"}
    assert everything == set(TOPIC_CONFIGS)


async def test_what_is_beyond_the_bound_of_one_request_is_refused() -> None:
    async with cluster(limits=BrokerLimits(configs_described_max=2)) as broker:
        for name in ("a", "b", "c"):
            await broker.create(name)
        results = await ask(broker, (TOPIC, "a"), (TOPIC, "missing"), (TOPIC, "b"), (TOPIC, "c"))

    assert [error_of(result) for result in results] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
        ErrorCode.invalid_request,
    ]
    assert "at most 2 resources" in results[3].error_message
