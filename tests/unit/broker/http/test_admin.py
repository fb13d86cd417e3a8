from typing import Any

from tests.kit.http_asking import Http


async def test_lists_are_told_page_by_page(http: Http) -> None:
    for name in ("b", "a", "d", "c", "e"):
        await http.produced(name, 0, ["x"])

    seen: list[str] = []
    after = ""
    while True:
        status, page = await http.get(f"/api/v1/topics?limit=2&after={after}")
        assert status == 200
        seen += [topic["topic"] for topic in page["topics"]]
        if page["next"] is None:
            break
        assert len(page["topics"]) == 2
        after = page["next"]
    assert seen == ["a", "b", "c", "d", "e"]
    for limit in ("0", "1001", "-1", "x", "9" * 40, "0" * 5_000 + "1", "000000001500", ""):
        status, answer = await http.get(f"/api/v1/topics?limit={limit}")
        assert (status, answer["error_type"]) == (400, "InvalidRequest"), limit


async def test_a_topic_is_told_with_its_partitions(http: Http) -> None:
    await http.produced("t", 0, ["a", "b"])

    status, told = await http.get("/api/v1/topics/t")

    assert status == 200
    assert (told["topic"], told["partition_count"], told["internal"], told["configs"]) == ("t", 1, False, {})
    (partition,) = told["partitions"]
    assert (partition["partition"], partition["log_start_offset"], partition["high_watermark"]) == (0, 0, 2)
    assert partition["bytes"] > 0
    assert (await http.get("/api/v1/topics/none"))[0] == 404


async def test_the_cluster_and_its_brokers_are_told(http: Http) -> None:
    _, cluster = await http.get("/api/v1/cluster")
    _, brokers = await http.get("/api/v1/brokers")
    member = http.member

    assert cluster["cluster_id"] == member.broker.cluster_id
    assert (cluster["broker_id"], cluster["brokers"]) == (member.broker_id, [member.broker_id])
    (broker,) = brokers["brokers"]
    assert broker["listeners"] == [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": member.port}]


async def test_a_group_that_is_not_there_is_not_found(http: Http) -> None:
    status, groups = await http.get("/api/v1/groups")
    assert (status, groups) == (200, {"groups": [], "complete": True, "next": None})
    status, answer = await http.get("/api/v1/groups/none")
    assert (status, answer["error_type"]) == (404, "GroupIdNotFound")


async def test_settings_are_told_without_secrets(http: Http) -> None:
    told: dict[str, Any] = (await http.get("/api/v1/settings"))[1]["settings"]
    assert told["kafka.default_partitions"] == "1"
