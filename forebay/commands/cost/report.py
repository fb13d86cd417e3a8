"""What a cluster has cost in a time that is over, as a Prometheus has kept it (`forebay cost report`)."""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from forebay.commands.generate.rules import BROKERS
from forebay.kafka_client.failures import EXIT_UNREACHABLE, ClientFailed
from forebay.kafka_client.text import align
from process.cost.prices import GIB, MONTH_S

ANSWER_BYTES_MAX: Final = 4 * 2**20
STORAGE_STEP_S: Final = 300
"""Between the values whose mean storage costs; in a short time there are ten."""


class _Result(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Found(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Result]


class _Answer(msgspec.Struct):
    status: str
    data: _Found | None = None
    error: str = ""


_decoder: Final = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class CostReport:
    """Dollars and counts of `since_s`. `storage_dollars` is None where no compactor has said what is stored."""

    since_s: float
    dollars_by_cause: Mapping[str, float]
    requests: Mapping[str, float]
    bytes_in: float
    bytes_out: float
    storage_dollars: float | None

    @property
    def request_dollars(self) -> float:
        return sum(self.dollars_by_cause.values())

    @property
    def dollars(self) -> float:
        return self.request_dollars + (self.storage_dollars or 0.0)


def ask_prometheus(url: str, *, since_s: float, cluster: str | None, within_s: float) -> CostReport:
    """The report of the time up to now. `cluster`: of the series with this label alone. Raise `ClientFailed` if it cannot be had."""
    of = "" if cluster is None else f'cluster="{cluster}"'
    window = f"[{since_s:.0f}s]"

    def ask(query: str, label: str = "") -> dict[str, float]:
        return {one.metric.get(label, ""): float(one.value[1]) for one in _ask(url, query, within_s).result}

    def moved(direction: str) -> float:
        labels = ",".join(part for part in (of, f'direction="{direction}"') if part)
        return ask(f"sum(increase(forebay_topic_bytes_total{{{labels}}}{window}))").get("", 0.0)

    causes = ask(f"sum by (cause) (increase(forebay_cost_dollars_total{{{of}}}{window}))", "cause")
    if not causes:
        raise ClientFailed(
            f"{url} has no series forebay_cost_dollars_total of the last {since_s:.0f} s. Scrape brokers and compactors (job {BROKERS}: "
            "forebay generate prometheus), or name a --cluster that it has.",
            exit_code=EXIT_UNREACHABLE,
        )
    step_s = max(1, min(STORAGE_STEP_S, int(since_s) // 10))
    stored = ask(f"avg_over_time(max(forebay_cost_storage_dollars_per_month{{{of}}})[{since_s:.0f}s:{step_s}s])").get("")
    return CostReport(
        since_s=since_s,
        dollars_by_cause=dict(sorted(causes.items(), key=lambda item: -item[1])),
        requests=ask(f"sum by (request) (increase(forebay_s3_requests_total{{{of}}}{window}))", "request"),
        bytes_in=moved("in"),
        bytes_out=moved("out"),
        storage_dollars=None if stored is None else stored * since_s / MONTH_S,
    )


def report_data(report: CostReport) -> Mapping[str, object]:
    """All figures, unrounded."""
    gib = report.bytes_in / GIB
    return {
        "since_s": report.since_s,
        "dollars": report.dollars,
        "request_dollars": report.request_dollars,
        "storage_dollars": report.storage_dollars,
        "dollars_by_cause": dict(report.dollars_by_cause),
        "requests": dict(report.requests),
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
        "request_dollars_per_gib_written": report.request_dollars / gib if gib else None,
        "dollars_per_month": report.dollars * MONTH_S / report.since_s,
    }


def report_table(report: CostReport) -> str:
    """Dollars by cause, and what they make a month."""
    rows = [(cause, f"{dollars:,.4f}") for cause, dollars in report.dollars_by_cause.items()]
    if report.storage_dollars is not None:
        rows.append(("storage", f"{report.storage_dollars:,.4f}"))
    rows.append(("together", f"{report.dollars:,.4f}"))
    requests = ", ".join(f"{count:,.0f} {name}" for name, count in sorted(report.requests.items()) if round(count)) or "none"
    lines = [align(("CAUSE", "DOLLARS"), rows), "", f"requests: {requests}"]
    if gib := report.bytes_in / GIB:
        per_gib = report.request_dollars / gib
        lines.append(f"{gib:,.3f} GiB written, {report.bytes_out / GIB:,.3f} read; a GiB written costs ${per_gib:,.4f} of requests")
    lines.append(f"at this rate ${report.dollars * MONTH_S / report.since_s:,.2f} a month")
    if report.storage_dollars is None:
        lines.append("without storage: no compactor has told what is stored")
    return "\n".join(lines)


def _ask(url: str, query: str, within_s: float) -> _Found:
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=within_s)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/query?{urlencode({'query': query})}")
        response = connection.getresponse()
        answer = _decoder.decode(response.read(ANSWER_BYTES_MAX))
    except (http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ClientFailed(
            f"What answers at {url} is no Prometheus. Give its address as --prometheus.", exit_code=EXIT_UNREACHABLE
        ) from error
    except OSError as error:
        cause = (error.strerror or str(error) or "no answer").lower()
        raise ClientFailed(
            f"No Prometheus answers at {url}: {cause}. Give its address as --prometheus.", exit_code=EXIT_UNREACHABLE
        ) from error
    finally:
        connection.close()
    if answer.data is None:
        raise ClientFailed(f"Prometheus at {url} refuses the query: {answer.error[:300]}", exit_code=EXIT_UNREACHABLE)
    return answer.data
