import pytest

from storage.catalog.topic_configs import (
    TOPIC_CONFIGS,
    Alteration,
    ConfigEffect,
    ConfigType,
    InvalidTopicConfig,
    Operation,
    alter,
    effective,
    integer,
    not_enforced,
    validate,
    value_of,
)


def test_the_table_is_sorted_and_every_default_is_a_legal_value() -> None:
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
    for config in TOPIC_CONFIGS.values():
        assert config.rule(config.default) == config.default
        assert config.documentation
        assert config.idle is None or (config.effect is ConfigEffect.NOT_YET and config.rule(config.idle) == config.idle)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.ms", " 60000 ", "60000"),
        ("retention.ms", "-1", "-1"),
        ("retention.bytes", "+5", "5"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        *(("compression.type", codec, codec) for codec in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        ("compression.lz4.level", "17", "17"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.gzip.level", "9", "9"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("message.timestamp.type", "CreateTime", "CreateTime"),
        ("max.message.bytes", "2097152", "2097152"),
        ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
        ("preallocate", "TRUE", "true"),
        ("remote.storage.enable", "False", "false"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("flush.messages", str(2**63 - 1), str(2**63 - 1)),
    ],
)
def test_a_legal_value_is_kept_as_kafka_prints_it(name: str, value: str, kept: str) -> None:
    assert validate({name: value}) == {name: kept}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "soon", "retention.ms=soon: must be an integer"),
        ("retention.ms", "-2", "must be an integer from -1"),
        ("retention.ms", "1_000", "must be an integer"),
        ("retention.ms", "٣", "must be an integer"),
        ("flush.messages", str(2**63), "must be an integer"),
        ("flush.messages", "9" * 5_000, "must be an integer"),
        ("cleanup.policy", "", "must be delete, compact"),
        ("cleanup.policy", "compact,compact", "must be delete, compact"),
        ("cleanup.policy", "keep", "must be delete, compact"),
        ("compression.type", "brotli", "must be one of uncompressed, gzip, snappy, lz4, zstd, producer"),
        ("compression.type", "GZIP", "must be one of"),
        ("compression.type", "none", "must be one of"),
        ("compression.gzip.level", "0", "must be an integer from 1 to 9"),
        ("min.cleanable.dirty.ratio", "1.5", "must be a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "must be a number from 0 to 1"),
        ("min.insync.replicas", "0", "must be an integer from 1"),
        ("unclean.leader.election.enable", "yes", "must be true or false"),
        ("remote.storage.enable", "true", "there is no second tier"),
        ("message.timestamp.type", "Yesterday", "must be one of CreateTime, LogAppendTime"),
        ("leader.replication.throttled.replicas", "a:b", "a list of partition:broker"),
        ("max.message.bytes", str(2**31 - 1), "must be an integer from 0 to 104857600"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_expected(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=words):
        validate({name: value})


@pytest.mark.parametrize("name", ["remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable"])
def test_what_would_be_missed_is_refused_and_the_message_says_why(name: str) -> None:
    assert TOPIC_CONFIGS[name].effect is ConfigEffect.REFUSED
    assert validate({name: "FALSE"}) == {name: "false"}
    with pytest.raises(InvalidTopicConfig, match=rf"^{name}=true: must be false: there is no second tier, the whole log lies in .*$"):
        validate({name: "true"})


def test_a_config_says_what_a_broker_does_about_it() -> None:
    said = {name: config.documentation for name, config in TOPIC_CONFIGS.items()}

    assert said["max.message.bytes"].startswith("The largest batch")
    assert said["delete.retention.ms"].startswith("Kept, not yet enforced: no record goes because a newer one has its key. How long")
    assert said["segment.bytes"] == "Kept for tools, without effect: a broker here keeps no log files."
    assert said["remote.storage.enable"].startswith("Other values are refused: there is no second tier")


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ({}, []),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, []),
        ({"max.message.bytes": "5", "segment.bytes": "14", "min.insync.replicas": "2", "from.the.future": "1"}, []),
        ({"delete.retention.ms": "604800000"}, ["delete.retention.ms"]),
        (
            {"retention.bytes": "5", "min.compaction.lag.ms": "5", "cleanup.policy": "compact,delete"},
            ["cleanup.policy", "min.compaction.lag.ms"],
        ),
    ],
)
def test_what_asks_for_something_that_no_broker_does_yet_is_named(configs: dict[str, str], names: list[str]) -> None:
    assert not_enforced(configs) == names


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidTopicConfig, match=r"^retention\.msec is not a topic config\. Did you mean retention\.ms\?$"):
        validate({"retention.msec": "1"})
    with pytest.raises(InvalidTopicConfig, match=r"^zzz is not a topic config\.$"):
        validate({"zzz": "1"})


def test_null_is_no_value() -> None:
    with pytest.raises(InvalidTopicConfig, match=r"retention\.ms has no value"):
        validate({"retention.ms": None})


def test_the_compaction_lags_must_agree() -> None:
    with pytest.raises(InvalidTopicConfig, match=r"min\.compaction\.lag\.ms must not be greater"):
        validate({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_what_is_not_set_has_its_default() -> None:
    configs = validate({"retention.ms": "5"})

    assert value_of(configs, "cleanup.policy") == "delete"
    assert integer(configs, "retention.ms") == 5
    assert integer(configs, "max.message.bytes") == 1_048_588
    held = {value.config.name: value for value in effective(configs)}
    assert set(held) == set(TOPIC_CONFIGS)
    assert (held["retention.ms"].value, held["retention.ms"].is_set) == ("5", True)
    assert (held["segment.bytes"].value, held["segment.bytes"].is_set) == ("1073741824", False)
    assert held["segment.bytes"].config.type is ConfigType.INT


def test_a_config_that_an_older_program_does_not_know_is_passed_over() -> None:
    assert "from.the.future" not in {value.config.name for value in effective({"from.the.future": "1"})}


SET, DELETE, APPEND, SUBTRACT = Operation.SET, Operation.DELETE, Operation.APPEND, Operation.SUBTRACT


@pytest.mark.parametrize(
    ("configs", "alterations", "altered"),
    [
        ({}, [("retention.ms", SET, " 5 ")], {"retention.ms": "5"}),
        ({"retention.ms": "5", "flush.ms": "1"}, [("retention.ms", DELETE, "")], {"flush.ms": "1"}),
        ({}, [("retention.ms", DELETE, ""), ("nobody.knows", DELETE, "")], {}),
        ({}, [("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "compact"}, [("cleanup.policy", APPEND, "compact,delete")], {"cleanup.policy": "compact,delete"}),
        ({"cleanup.policy": "compact,delete"}, [("cleanup.policy", SUBTRACT, "delete, other")], {"cleanup.policy": "compact"}),
        (
            {},
            [("leader.replication.throttled.replicas", APPEND, "0:1,1:2")],
            {"leader.replication.throttled.replicas": "0:1,1:2"},
        ),
        (
            {"leader.replication.throttled.replicas": "0:1"},
            [("leader.replication.throttled.replicas", SUBTRACT, "0:1")],
            {"leader.replication.throttled.replicas": ""},
        ),
    ],
)
def test_alterations_are_made_and_made_twice_are_the_same(
    configs: dict[str, str], alterations: list[tuple[str, Operation, str]], altered: dict[str, str]
) -> None:
    made = [Alteration(*one) for one in alterations]

    assert alter(configs, made) == altered
    assert alter(altered, made) == altered


@pytest.mark.parametrize(
    ("alteration", "words"),
    [
        (("retention.sm", SET, "5"), "Did you mean retention.ms"),
        (("retention.sm", APPEND, "5"), "Did you mean retention.ms"),
        (("retention.ms", SET, "soon"), "must be an integer"),
        (("retention.ms", APPEND, "5"), "APPEND is for lists, and retention.ms is of type LONG"),
        (("compression.type", SUBTRACT, "gzip"), "SUBTRACT is for lists"),
        (("compression.type", SET, "brotli"), "must be one of"),
        (("cleanup.policy", SUBTRACT, "delete"), "must be delete, compact"),
        (("min.compaction.lag.ms", SET, "9"), "must not be greater than"),
    ],
)
def test_an_alteration_that_cannot_be_made_says_why(alteration: tuple[str, Operation, str], words: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=words):
        alter({"max.compaction.lag.ms": "8"}, [Alteration(*alteration)])


def test_configs_that_do_not_fit_their_record_are_refused() -> None:
    many = ",".join(f"{number}:1" for number in range(10_000))

    with pytest.raises(InvalidTopicConfig, match="at most 32768 characters"):
        validate({"leader.replication.throttled.replicas": many})


def test_a_long_name_that_is_no_config_is_refused_without_looking_for_what_it_was_meant_for() -> None:
    with pytest.raises(InvalidTopicConfig, match="is not a topic config") as short:
        validate({"retention.mss": "1"})
    with pytest.raises(InvalidTopicConfig, match="is not a topic config") as long:
        validate({"retention.ms" * 1_000: "1"})

    assert "Did you mean retention.ms?" in str(short.value)
    assert "Did you mean" not in str(long.value)
