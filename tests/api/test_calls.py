"""What a client may say, in which words, and which of them wins."""

import json

import pytest

from gateway.api.calls import Asked, read_call
from gateway.api.endpoints import ENDPOINTS
from gateway.api.said import pick_headers
from gateway.core.types import ANONYMOUS, WorkflowKey

Json = dict[str, object]


def asked(
    headers: dict[str, str] | None = None, metadata: Json | None = None, **fields: object
) -> Asked:
    body: Json = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], **fields}
    if metadata is not None:
        body["metadata"] = metadata
    given = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return read_call(
        json.dumps(body).encode(),
        pick_headers(given),
        ANONYMOUS,
        lambda model: (model or "", "m1"),
        ENDPOINTS["/v1/chat/completions"],
    )


def test_a_plain_call_says_nothing_and_passes_as_it_came() -> None:
    call = asked()

    assert call.said.workflow is None
    assert (call.said.deadline_s, call.said.ttft_s, call.said.hint_tokens, call.max_tokens) == (
        None,
    ) * 4
    assert (call.stream, call.hide_usage, call.said.is_retry, call.said.explain) == (False,) * 4
    assert json.loads(call.upstream_body) == call.body


def test_a_workflow_in_headers() -> None:
    call = asked(
        {
            "x-workflow-id": " w-1 ",
            "x-workflow-name": "text2sql",
            "x-workflow-stage": "revise",
            "x-workflow-deadline-ms": "1500",
            "x-workflow-final": "true",
        }
    )

    ref = call.said.workflow
    assert ref is not None
    assert ref.key == WorkflowKey(ANONYMOUS, "w-1")
    assert (ref.name, ref.stage, ref.deadline_s, ref.final) == ("text2sql", "revise", 1.5, True)


def test_the_same_in_metadata_and_the_header_wins() -> None:
    call = asked(
        {"x-workflow-id": "header"},
        {"workflow-id": "body", "workflow-deadline-ms": 1500, "workflow-final": True, "mine": "x"},
    )

    ref = call.said.workflow
    assert ref is not None
    assert (ref.key.id, ref.deadline_s, ref.final) == ("header", 1.5, True)
    assert json.loads(call.upstream_body)["metadata"] == {"mine": "x"}


def test_metadata_that_held_only_our_words_is_left_out() -> None:
    assert "metadata" not in json.loads(asked(metadata={"workflow-id": "w"}).upstream_body)


@pytest.mark.parametrize(
    "alias", ["x-claude-code-session-id", "x-session-affinity", "session-id", "x-dynamo-session-id"]
)
def test_a_session_id_stands_in_for_a_workflow_id(alias: str) -> None:
    by_alias = asked({alias: "s"}).said.workflow
    by_both = asked({alias: "s", "x-workflow-id": "w"}).said.workflow

    assert by_alias is not None
    assert by_alias.key.id == "s"
    assert by_both is not None
    assert by_both.key.id == "w"


def test_dynamos_last_call_is_a_last_call() -> None:
    ref = asked({"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}).said.workflow

    assert ref is not None
    assert ref.final


@pytest.mark.parametrize(
    ("headers", "deadline_s"),
    [
        ({"x-request-deadline-ms": "2500"}, 2.5),
        ({"x-stainless-read-timeout": "600"}, 600.0),
        ({"x-stainless-read-timeout": "0.5"}, 0.5),
        ({"x-stainless-read-timeout": "600", "x-request-deadline-ms": "2500"}, 2.5),
        ({"x-stainless-read-timeout": "never"}, None),
        ({"x-stainless-read-timeout": "0"}, None),
    ],
)
def test_a_deadline_is_the_clients_own_or_its_librarys_patience(
    headers: dict[str, str], deadline_s: float | None
) -> None:
    assert asked(headers).said.deadline_s == deadline_s


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"])
def test_a_target_for_the_first_token(name: str) -> None:
    assert asked({name: "300"}).said.ttft_s == 0.3


@pytest.mark.parametrize(
    "name", ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"]
)
def test_a_fairness_id_is_a_flow(name: str) -> None:
    assert asked({name: "f"}).said.flow == "f"


@pytest.mark.parametrize(("count", "is_retry"), [("0", False), ("1", True), ("2", True)])
def test_a_retry_says_so(count: str, is_retry: bool) -> None:
    assert asked({"x-stainless-retry-count": count}).said.is_retry is is_retry


def test_the_longer_name_of_the_cap_wins() -> None:
    assert asked(max_tokens=9, max_completion_tokens=5).max_tokens == 5
    assert asked(max_tokens=9).max_tokens == 9
    assert asked(max_tokens=-1).max_tokens is None


def test_a_hint_is_no_cap() -> None:
    call = asked({"x-expected-output-tokens": "40"})

    assert (call.said.hint_tokens, call.max_tokens) == (40, None)


def test_priority_is_read_and_kept_from_engines() -> None:
    call = asked(priority=-3)

    assert call.priority == -3
    assert "priority" not in json.loads(call.upstream_body)


def test_an_alias_is_resolved() -> None:
    call = asked(model="alias")

    assert call.model == "m1"
    assert json.loads(call.upstream_body)["model"] == "m1"
