"""`forebay cost report`, before a Prometheus that answers by hand."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from forebay.cli import application

GIB = 2**30
ANSWERS: Mapping[str, list[tuple[dict[str, str], str]]] = {
    "sum by (cause) (increase(forebay_cost_dollars_total{}[86400s]))": [({"cause": "fetch"}, "1"), ({"cause": "flush"}, "3")],
    "sum by (request) (increase(forebay_s3_requests_total{}[86400s]))": [({"request": "put"}, "600000.4"), ({"request": "head"}, "0")],
    'sum(increase(forebay_topic_bytes_total{direction="in"}[86400s]))': [({}, str(2 * GIB))],
    'sum(increase(forebay_topic_bytes_total{direction="out"}[86400s]))': [({}, str(4 * GIB))],
    "avg_over_time(max(forebay_cost_storage_dollars_per_month{})[86400s:300s])": [({}, "30.4166667")],
}


class Asked(BaseHTTPRequestHandler):
    answers = ANSWERS
    body: bytes | None = None

    def do_GET(self) -> None:
        (query,) = parse_qs(urlsplit(self.path).query)["query"]
        found = [{"metric": labels, "value": [0.0, value]} for labels, value in self.answers.get(query, [])]
        told = {"status": "success", "data": {"resultType": "vector", "result": found}}
        body = self.body or json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Asked)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/below"
    server.shutdown()
    thread.join()
    server.server_close()


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(application, ["cost", "report", "--prometheus", url, *words])


def test_a_day_is_told_with_storage_and_what_it_makes_a_month(prometheus: str) -> None:
    ended = run(prometheus)

    assert ended.exit_code == 0, ended.output
    assert ended.stdout.splitlines() == [
        "CAUSE     DOLLARS",
        "flush     3.0000",
        "fetch     1.0000",
        "storage   1.0000",
        "together  5.0000",
        "",
        "requests: 600,000 put",
        "2.000 GiB written, 4.000 read; a GiB written costs $2.0000 of requests",
        "at this rate $152.08 a month",
    ]


def test_json_has_every_figure_unrounded(prometheus: str) -> None:
    found = json.loads(run(prometheus, "-o", "json").stdout)

    assert found["requests"]["put"] == 600000.4
    assert (found["request_dollars"], found["request_dollars_per_gib_written"], found["since_s"]) == (4.0, 2.0, 86_400)


def test_without_series_it_says_what_has_to_be_scraped(prometheus: str) -> None:
    ended = run(prometheus, "--since", "1h")

    assert ended.exit_code == 3
    assert "no series forebay_cost_dollars_total of the last 3600 s" in ended.stderr
    assert "forebay generate prometheus" in ended.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "no Prometheus"),
        (b'{"status":"error","error":"parse error"}', "refuses the query: parse error"),
        (b"[1]", "no Prometheus"),
    ],
)
def test_what_is_no_prometheus_is_told_by_its_address(prometheus: str, monkeypatch: pytest.MonkeyPatch, body: bytes, said: str) -> None:
    monkeypatch.setattr(Asked, "body", body)
    ended = run(prometheus)

    assert ended.exit_code == 3
    assert said in ended.stderr
    assert prometheus in ended.stderr


@pytest.mark.parametrize(
    ("url", "words", "said"),
    [
        ("127.0.0.1:9090", (), "is no URL"),
        ("http://127.0.0.1:1", (), "No Prometheus answers"),
        ("http://127.0.0.1:1", ("--since", "soon"), "is not a duration"),
        ("http://127.0.0.1:1", ("--since", "1ms"), "is too little"),
        ("http://127.0.0.1:1", ("--cluster", 'a"b'), "has characters"),
    ],
)
def test_wrong_options_are_named(url: str, words: tuple[str, ...], said: str) -> None:
    ended = run(url, *words)

    assert ended.exit_code in (2, 3)
    assert said in " ".join(ended.stderr.split())
