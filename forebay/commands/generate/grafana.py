"""A dashboard as Grafana imports it: JSON of its schema 38 (Grafana 10.1 and newer)."""

import json
from collections.abc import Iterator
from typing import Any, Final

from forebay.commands.generate.dashboards import Dashboard, Panel

SCHEMA_VERSION: Final = 38
COLUMNS: Final = 24
_SIZES: Final = {True: (6, 5), False: (12, 8)}
"""Width and height of a number, and of values over time."""
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_IDENTITY: Final = "forebay_build_info"


def as_grafana(name: str, dashboard: Dashboard) -> str:
    """The text of the file. The same dashboard gives the same bytes."""
    return json.dumps(_document(name, dashboard), indent=2, ensure_ascii=False) + "\n"


def _document(name: str, dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"forebay-{name}",
        "title": f"Forebay: {dashboard.title}",
        "tags": ["forebay"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [_LINK],
        "templating": {"list": [_DATASOURCES, _variable("cluster"), _variable("instance", 'cluster=~"$cluster"')]},
        "annotations": {"list": []},
        "panels": list(_panels(dashboard)),
    }


_LINK: Final = {
    "title": "Forebay",
    "type": "dashboards",
    "icon": "external link",
    "tooltip": "",
    "tags": ["forebay"],
    "asDropdown": True,
    "targetBlank": False,
    "includeVars": True,
    "keepTime": True,
}
_DATASOURCES: Final = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "hide": 0,
    "skipUrlSync": False,
}


def _variable(label: str, *matchers: str) -> dict[str, Any]:
    """Choose among the values of a label. All of them is the choice of a Prometheus that has none, too."""
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": f"label_values({_IDENTITY}{{{','.join(matchers)}}}, {label})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "hide": 0,
        "skipUrlSync": False,
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Place panels from left to right, and begin a row where the next one has no room."""
    x = y = row_height = 0
    for number, panel in enumerate(dashboard.panels, start=1):
        width, height = _SIZES[panel.is_number]
        if x + width > COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        yield _panel(number, panel, {"x": x, "y": y, "w": width, "h": height})
        x, row_height = x + width, max(row_height, height)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": query.expression, "legendFormat": query.legend or panel.title}
        for index, query in enumerate(panel.queries)
    ]
    shown = {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": targets,
    }
    if panel.is_number:
        return {
            **shown,
            "type": "stat",
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "options": {"reduceOptions": {"values": False, "calcs": ["lastNotNull"]}, "textMode": "value_and_name"},
        }
    return {
        **shown,
        "type": "timeseries",
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
