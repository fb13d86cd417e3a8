from forebay.commands.topic.administration import ConfigFacts, PartitionFacts, TopicFacts, TopicLine, counted, topic_table, topics_table


def test_topics_are_aligned_columns() -> None:
    topics = [TopicLine(name="orders", partitions=12, replication_factor=3), TopicLine(name="x", partitions=1, replication_factor=1)]

    assert topics_table(topics).splitlines() == [
        "NAME    PARTITIONS  REPLICAS",
        "orders          12         3",
        "x                1         1",
    ]


def test_a_topic_is_shown_with_the_configs_that_were_set_for_it() -> None:
    topic = TopicFacts(
        name="orders",
        id="abc",
        is_internal=False,
        partitions=[
            PartitionFacts(partition=0, leader=-1, replicas=[1, 2], isr=[], start=5, end=12),
            PartitionFacts(partition=1, leader=1, replicas=[1, 2], isr=[1], start=0, end=3, size_bytes=70_000),
        ],
        configs={
            "cleanup.policy": ConfigFacts(value="delete", source="DEFAULT_CONFIG"),
            "retention.ms": ConfigFacts(value="1000", source="DYNAMIC_TOPIC_CONFIG"),
        },
    )

    assert topic_table(topic).splitlines() == [
        "name     orders",
        "id       abc",
        "size     70,000 bytes, without 1 partition of unknown size",
        "configs  retention.ms=1000",
        "",
        "PARTITION  LEADER  REPLICAS  ISR   START  END  RECORDS  BYTES",
        "        0      -1  1,2       none      5   12        7      -",
        "        1       1  1,2       1         0    3        3  70000",
    ]


def test_counts_read_as_english() -> None:
    assert [counted(count, "record") for count in (0, 1, 1234)] == ["0 records", "1 record", "1,234 records"]
