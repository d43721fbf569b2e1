"""Who offers what: by the configuration, by the engine's own list, else by its kind."""

import json

import pytest

from gateway.backends.offers import nameless, offers, read_openapi


@pytest.mark.parametrize(
    ("path", "kind", "listed", "offered"),
    [
        ("/v1/chat/completions", "vllm", None, True),
        ("/v1/embeddings", "vllm", None, True),
        ("/generate", "vllm", None, False),
        ("/generate", "tgi", None, True),
        ("/v1/embeddings", "tgi", None, False),
        ("/v1/embeddings", "vllm", {"/v1/chat/completions"}, False),
        ("/v1/responses/{id}", "vllm", {"/v1/responses/{}"}, True),
        ("/x", "openai", {"/x"}, True),
    ],
)
def test_what_an_engine_offers(
    path: str, kind: str, listed: set[str] | None, offered: bool
) -> None:
    assert offers(path, kind, listed) is offered


def test_parameters_have_no_names() -> None:
    assert nameless("/v1/responses/{response_id}/cancel") == "/v1/responses/{}/cancel"


@pytest.mark.parametrize(
    ("document", "paths"),
    [
        ({"paths": {"/v1/completions": {}, "/v1/r/{x}": {}}}, {"/v1/completions", "/v1/r/{}"}),
        ({"paths": {"/ui": {}}}, None),
        ({"paths": []}, None),
        ([], None),
        ("", None),
    ],
)
def test_a_list_is_read_if_it_is_one(document: object, paths: set[str] | None) -> None:
    assert read_openapi(json.dumps(document).encode()) == paths
    assert read_openapi(b"<html>") is None
