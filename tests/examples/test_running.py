"""The examples run, as their first lines say, against a gateway and emulated engines."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples.text2sql.questions import QUESTIONS
from tests.deploy.places import ROOT
from tests.e2e.processes import a_fleet

STAGES = [
    "extract_keywords",
    "link_schema",
    "generate_candidate",
    "revise",
    "generate_unit_test",
    "evaluate",
    "answer",
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a_fleet(tmp_path_factory.mktemp("fleet"), "A100-80G", "L40S") as url:
        yield url


def run(*words: str, expect: int = 0) -> str:
    """Run a program from the root; return what it printed."""
    environment = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    result = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result.stdout


def agent(base_url: str, *words: str, expect: int = 0) -> list[dict[str, Any]]:
    """Run the text-to-SQL agent; return its outcomes."""
    for package in ("langgraph", "langchain_openai"):
        pytest.importorskip(package, reason=f"{package}: the extra `examples` brings it")
    command = [sys.executable, "-m", "examples.text2sql", "--base-url", base_url, "--json"]
    return [json.loads(line) for line in run(*command, *words, expect=expect).splitlines()]


def series(gateway: str, name: str) -> dict[str, float]:
    """Return one series of the gateway's metrics by its labels' values."""
    with urllib.request.urlopen(f"{gateway}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        " ".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize("name", ["openai_sync", "openai_workflow"])
def test_the_openai_client_gets_answers(gateway: str, name: str) -> None:
    printed = run(sys.executable, f"examples/clients/{name}.py", f"{gateway}/v1", "m1")

    assert len(printed.split()) > 10


def test_curl_gets_models_answers_streams_and_reasons(gateway: str) -> None:
    printed = run("bash", "examples/clients/curl.sh", f"{gateway}/v1", "m1")

    assert '"object":"list"' in printed
    assert "data: [DONE]" in printed
    assert "x-hexsage-backend: " in printed
    assert printed.count('"object":"chat.completion"') == 3


def test_llamaindex_gets_answers(gateway: str) -> None:
    if find_spec("llama_index") is None:
        pytest.skip("llama_index is not installed: it wants openai < 3, the tests a newer one")

    printed = run(sys.executable, "examples/clients/llamaindex.py", f"{gateway}/v1", "m1")

    assert len(printed.split()) > 10


def test_the_agent_takes_every_stage_though_the_model_talks_nonsense(gateway: str) -> None:
    ended_before = sum(series(gateway, "hexsage_workflows_total").values())

    outcomes = agent(f"{gateway}/v1", "--questions", "2")

    assert len(outcomes) == 2
    for outcome in outcomes:
        assert list(outcome["stages"]) == STAGES
        assert outcome["on_time"]
        assert outcome["origin"] == "fallback"
        calls = {name: spent["calls"] for name, spent in outcome["stages"].items()}
        assert calls["generate_candidate"] == 2
        assert calls["revise"] == 4
        assert calls["answer"] == 1
    # The last call said that it was the last: nothing stays open.
    assert sum(series(gateway, "hexsage_workflows_total").values()) == ended_before + 2
    assert series(gateway, "hexsage_workflows_open") == {"": 0.0}


def test_the_agent_is_right_when_the_model_knows_and_says_when_it_is_late() -> None:
    with a_model_that_knows() as base_url:
        outcomes = agent(base_url, "--deadline-ms", "1")

    assert len(outcomes) == len(QUESTIONS)
    assert [outcome["question"] for outcome in outcomes if not outcome["is_right"]] == []
    assert not any(outcome["on_time"] or outcome["error"] for outcome in outcomes)
    assert all("revise" not in outcome["stages"] for outcome in outcomes)
    assert {outcome["stages"]["evaluate"]["calls"] for outcome in outcomes} == {2}


def test_the_agent_tells_of_a_server_that_is_not_there() -> None:
    (outcome,) = agent("http://127.0.0.1:9/v1", "--questions", "1", expect=1)

    assert outcome["error"] == "Connection error."
    assert not outcome["on_time"]


def test_the_shop_can_be_made_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    run(sys.executable, "-m", "examples.text2sql.shop", str(path))

    assert path.read_bytes().startswith(b"SQLite format 3")


@contextmanager
def a_model_that_knows() -> Iterator[str]:
    """Serve chat completions whose queries are right; yield the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Knowing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Knowing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        messages = json.loads(self.rfile.read(length))["messages"]
        message = {"role": "assistant", "content": _knows(str(messages[-1]["content"]))}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Sequence[object]) -> None:
        """Say nothing."""


def _knows(prompt: str) -> str:
    if "```sql" in prompt:
        gold = next(q.gold_sql for q in QUESTIONS if q.text in prompt)
        return f"So:\n```sql\n{gold};\n```"
    if "short tests" in prompt:
        return "There is a row.\nIt is not null."
    return "1: pass\n2: fail"
