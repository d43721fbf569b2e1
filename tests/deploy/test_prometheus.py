"""Alert rules, the dashboard and the chart's scaler ask for nothing that is not exported."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import APIStatusError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway
from gateway.config.settings import Settings
from tests.deploy.places import DEPLOY
from tests.e2e.processes import a_fleet

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
SCALER = DEPLOY / "helm" / "hexsage" / "templates" / "autoscaling.yaml"
ADDED_BY_SCRAPING = {"instance", "job", "namespace"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def queries() -> Iterator[str]:
    """Every query there is, with Grafana's variables filled in."""
    for rule in alerts():
        yield rule["expr"]
    for path in DASHBOARDS:
        for panel in dashboard(path)["panels"]:
            for target in panel.get("targets", ()):
                yield re.sub(r"\$__(rate_interval|range)", "5m", target["expr"])
    found = re.search(r"query: (.*)", SCALER.read_text(encoding="utf-8"))
    assert found is not None
    yield re.sub(r"\{\{.*?\}\}", "x", found[1])


def variables() -> Iterator[str]:
    """Every query of a dashboard's variables: `label_values(series, label)`."""
    for path in DASHBOARDS:
        for variable in dashboard(path)["templating"]["list"]:
            yield variable["definition"]


def exported() -> set[str]:
    """Every series name that a gateway can export."""

    async def scraped() -> str:
        return Gateway(Settings()).render_metrics().decode()

    text = asyncio.run(scraped())
    return {
        name + suffix
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
        for suffix in (SUFFIXES[kind] if not name.endswith("_total") else ("",))
    }


def test_every_series_that_is_asked_for_is_exported() -> None:
    asked = {
        name for query in [*queries(), *variables()] for name in re.findall(r"\bhexsage_\w+", query)
    }

    assert len(asked) > 10
    assert asked <= exported()


def test_every_query_is_promql() -> None:
    promql = pytest.importorskip("promql_parser")

    for query in queries():
        promql.parse(query)
    with pytest.raises(ValueError, match="unclosed"):
        promql.parse("sum by (")


def test_every_label_that_is_asked_for_is_there(tmp_path: Path) -> None:
    promql = pytest.importorskip("promql_parser")
    with a_fleet(tmp_path, "L40S") as url, OpenAI(base_url=f"{url}/v1", api_key="-") as client:
        workflow = {"x-workflow-id": "w", "x-workflow-final": "true"}
        _ask(client, "m1", workflow)
        with pytest.raises(APIStatusError):
            _ask(client, "no-such-model", {})
        answer = client.get("../metrics", cast_to=str)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(answer):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)

    checked = set()
    for query in queries():
        asked = _labels_by_series(promql, query)
        for name in asked.keys() & labels.keys():
            assert asked[name] <= labels[name] | ADDED_BY_SCRAPING, query
            checked.add(name)
    assert len(checked) > 8


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    for path in DASHBOARDS:
        panels = dashboard(path)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells))
        assert all(0 <= x < 24 for x, _ in cells)


def test_the_dashboard_asks_the_data_source_that_is_provisioned() -> None:
    provisioned = DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    sources = yaml.safe_load(provisioned.read_text(encoding="utf-8"))["datasources"]
    uids = {source["uid"] for source in sources}

    for path in DASHBOARDS:
        asked = set(re.findall(r'"type": "prometheus",\s*"uid": "([^"]+)"', path.read_text()))
        assert asked == uids


def test_every_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
        assert rule["for"], rule["alert"]


def test_prometheus_scrapes_what_the_alerts_call_hexsage() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))

    assert [job["job_name"] for job in config["scrape_configs"]] == ["hexsage"]
    assert config["rule_files"] == [ALERTS.name]


def _ask(client: OpenAI, model: str, headers: dict[str, str]) -> None:
    client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        extra_headers=headers,
    )


def _labels_by_series(promql: Any, query: str) -> dict[str, set[str]]:
    """Return by series what a query matches or groups by."""
    found: dict[str, set[str]] = {}

    def look(node: Any, grouped: frozenset[str]) -> None:
        if isinstance(node, promql.VectorSelector):
            asked = {matcher.name for matcher in node.matchers.matchers}
            found.setdefault(node.name, set()).update(asked | grouped)
            return
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            grouped = frozenset(node.modifier.labels)
        inner = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
        for child in [*inner, *getattr(node, "args", ())]:
            if child is not None:
                look(child, grouped)

    look(promql.parse(query), frozenset())
    return found
