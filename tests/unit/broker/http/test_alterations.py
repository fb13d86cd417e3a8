"""Topics, groups and brokers that are changed by HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.clustering import running_cluster
from tests.kit.http_asking import Http, http_of


@pytest.fixture
async def altering() -> AsyncIterator[Http]:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member, allow_writes=True) as asking:
            yield asking


async def ask(http: Http, method: str, path: str, document: Any = None) -> tuple[int, Any]:
    async with http.session.request(method, path, json=document) as response:
        return response.status, await response.json()


def place(topic: str, to: object) -> dict[str, Any]:
    return {"partitions": [{"topic": topic, "partition": 0, "to": to}]}


async def test_a_broker_that_drains_is_left_by_its_clients_and_lives_on() -> None:
    async with running_cluster() as cluster:
        leaving, staying = await cluster.join(), await cluster.join(http_port=8170)
        own, other = f"/api/v1/brokers/{leaving.broker_id}/drain", f"/api/v1/brokers/{staying.broker_id}/drain"
        async with http_of(leaving, allow_writes=True) as http, http_of(staying) as stays:
            await http.produced("t", 0, ["before"])
            for broker, status, error_type in (
                ("9", 404, "UnknownBroker"),
                ("-1", 400, "InvalidRequest"),
                ("9" * 5_000, 400, "InvalidRequest"),
            ):
                found, answer = await http.post(f"/api/v1/brokers/{broker}/drain", {})
                assert (found, answer["error_type"]) == (status, error_type)
            async with http.session.post(other, json={}, allow_redirects=False) as elsewhere:
                assert elsewhere.status == 307
                assert elsewhere.headers["Location"].endswith(other)
            for document, kind, status in (({"now": True}, "application/json", 400), ({}, "text/plain", 415)):
                assert (await http.post(own, document, content_type=kind))[0] == status
            assert (await http.get("/health"))[0] == 200

            told = [await http.post(own, {})]
            assert told == [(202, {"broker_id": leaving.broker_id, "status": "draining"})]
            while told[-1][0] == 202:
                told.append(await http.post(own, {}))

            assert told[-1] == (200, {"broker_id": leaving.broker_id, "status": "drained"})
            assert {(await http.get(path))[0] for path in ("/health", "/readyz")} == {503}
            assert (await http.get("/healthz"))[0] == 200
            status, answer = await http.post("/producers", {})
            assert (status, answer["error_type"]) == (503, "BackPressureRejected")
            assert [one["broker_id"] for one in (await stays.get("/api/v1/brokers"))[1]["brokers"]] == [staying.broker_id]
            assert await stays.values("t", 0) == ["before"]


async def test_a_broker_without_an_address_for_http_clients_is_not_drained_by_another() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(), await cluster.join()
        async with http_of(one, allow_writes=True) as http:
            status, answer = await http.post(f"/api/v1/brokers/{other.broker_id}/drain", {})
    assert (status, answer["error_type"]) == (409, "BrokerElsewhere")
    assert "http.advertised" in answer["error"]


async def test_a_topic_is_created_changed_and_deleted(altering: Http) -> None:
    status, told = await ask(altering, "POST", "/api/v1/topics", {"topic": "t", "partition_count": 2, "configs": {"retention.ms": "1000"}})
    assert (status, told["partition_count"], told["configs"]) == (201, 2, {"retention.ms": "1000"})
    changes = {"partition_count": 3, "configs": {"retention.ms": None, "max.message.bytes": "2000"}}
    status, told = await ask(altering, "PATCH", "/api/v1/topics/t", changes)
    assert (status, told["partition_count"], told["configs"]) == (200, 3, {"max.message.bytes": "2000"})
    assert await ask(altering, "DELETE", "/api/v1/topics/t") == (200, {"deleted": "t"})
    assert (await altering.get("/api/v1/topics/t"))[0] == 404


async def test_a_topic_that_is_only_validated_is_not_there(altering: Http) -> None:
    status, _ = await ask(altering, "POST", "/api/v1/topics", {"topic": "t", "validate_only": True})
    assert status == 200
    assert (await altering.get("/api/v1/topics/t"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "error_type"),
    [
        ("POST", "/api/v1/topics", {"topic": "there"}, 409, "TopicAlreadyExists"),
        ("POST", "/api/v1/topics", {"topic": "a b"}, 400, "InvalidTopic"),
        ("POST", "/api/v1/topics", {"topic": "t", "partition_count": 10_001}, 400, "InvalidRequest"),
        ("POST", "/api/v1/topics", {"topic": "t", "configs": {"no.such": "1"}}, 400, "InvalidConfig"),
        ("POST", "/api/v1/topics", {"topic": "t", "partitions": 1}, 400, "InvalidRequest"),
        ("PATCH", "/api/v1/topics/there", {}, 400, "InvalidRequest"),
        ("PATCH", "/api/v1/topics/there", {"partition_count": 1}, 400, "InvalidPartitions"),
        ("PATCH", "/api/v1/topics/none", {"partition_count": 2}, 404, "UnknownTopicOrPartition"),
        ("PATCH", "/api/v1/topics/there", {"configs": {"retention.ms": "soon"}}, 400, "InvalidConfig"),
        ("DELETE", "/api/v1/topics/none", None, 404, "UnknownTopicOrPartition"),
        ("DELETE", "/api/v1/groups/none", None, 404, "GroupIdNotFound"),
        (
            "POST",
            "/api/v1/groups/g/offsets",
            place("none", "end"),
            404,
            "UnknownTopicOrPartition",
        ),
        ("POST", "/api/v1/groups/g/offsets", place("there", "now"), 400, "InvalidRequest"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_kafka_s_name_for_it(
    altering: Http, method: str, path: str, document: Any, status: int, error_type: str
) -> None:
    await altering.produced("there", 0, ["a"])
    found, answer = await ask(altering, method, path, document)

    assert (found, answer["error_type"]) == (status, error_type)


async def test_a_group_in_which_nobody_is_is_reset_to_places_and_deleted(altering: Http) -> None:
    await altering.produced("t", 0, ["a", "b", "c"])
    for to, offset in (("end", 3), ("start", 0), (2, 2), ("@0", 0)):
        status, answer = await ask(altering, "POST", "/api/v1/groups/g/offsets", place("t", to))
        assert (status, [one["offset"] for one in answer["results"]]) == (200, [offset])
    assert await ask(altering, "DELETE", "/api/v1/groups/g") == (200, {"deleted": "g"})


async def test_a_group_with_members_is_neither_reset_nor_deleted(altering: Http) -> None:
    await altering.produced("t", 0, ["a"])
    assert (await altering.post("/groups/g/consumers", {"topics": ["t"]}))[0] == 201
    status, answer = await ask(altering, "POST", "/api/v1/groups/g/offsets", place("t", "end"))
    assert (status, answer["error_count"]) == (409, 1)
    status, answer = await ask(altering, "DELETE", "/api/v1/groups/g")
    assert (status, answer["error_type"]) == (409, "NonEmptyGroup")


@pytest.mark.parametrize("settings", [{}, {"allow_writes": True, "log_api": "read"}, {"allow_writes": True, "log_api": "off"}])
async def test_nothing_is_changed_where_the_operator_has_not_allowed_it(http: Http, settings: dict[str, Any]) -> None:
    async with http_of(http.member, **settings) as closed:
        for method, path, document in (
            ("POST", "/api/v1/topics", {"topic": "t"}),
            ("PATCH", "/api/v1/topics/t", {"partition_count": 2}),
            ("DELETE", "/api/v1/topics/t", None),
            ("POST", "/api/v1/groups/g/offsets", {"partitions": []}),
            ("DELETE", "/api/v1/groups/g", None),
            ("POST", f"/api/v1/brokers/{http.member.broker_id}/drain", {}),
        ):
            status, answer = await ask(closed, method, path, document)
            assert (status, answer["error_type"]) == (403, "NotAuthorized")
            assert "http.allow_writes" in answer["error"]
