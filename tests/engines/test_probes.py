"""The same request, straight to an engine and through the gateway, means the same."""

from typing import Any

import pytest

from gateway.api.codes import CODES, TYPES
from tests.engines.conftest import AUTHORIZED, Site
from tests.engines.probes import PROBES, Probe
from tests.engines.wire import Answer, ask, said

ENGINES = ("cpu", "llama")
"""The paced engines have the HTTP server of `cpu`."""
CHANGES_WITH_EVERY_ANSWER = ("id", "created", "timings")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: str(probe.name))
def test_a_request_means_the_same_through_the_gateway(
    site: Site, engine: str, probe: Probe
) -> None:
    direct = send(site.fleet[engine].url, site.fleet[engine].recipe.model, probe)

    through = send(site.gateway.url, site.fleet[engine].recipe.model, probe)

    assert "x-request-id" in through.headers
    if probe.differs:
        assert through.status == probe.differs.status
    elif direct.effective_status < 400:
        assert through.status == direct.status
        assert comparable(through) == comparable(direct)
    else:
        assert through.status // 100 == direct.effective_status // 100
    if through.status >= 400:
        assert_error_in_openai_shape(through)
    if through.status >= 400 and isinstance(through.json["error"]["code"], int):
        # The engine's own words.
        assert through.json["error"]["message"] == direct.json["error"]["message"]


def send(url: str, model: str, probe: Probe) -> Answer:
    """Ask; the key is the engine's, which the gateway neither needs nor may mind."""
    body = probe.body
    if isinstance(body, bytes):
        body = body.replace(b"MODEL", model.encode())
    elif body and body.get("model") == "MODEL":
        body = {**body, "model": model}
    headers = {**AUTHORIZED, **(probe.headers or {})}
    return ask(url, probe.path, body, method=probe.method, headers=headers)


def comparable(answer: Answer) -> Any:
    """Return all of an answer that two equal calls have in common."""
    if not answer.is_stream:
        return common(answer.json)
    # How tokens are gathered into chunks is chance; what they say is not.
    texts: dict[int, str] = {}
    rest = []
    for frame in map(common, answer.frames):
        for choice in frame.get("choices") or ():
            index = choice["index"]
            texts[index] = texts.get(index, "") + said({"choices": [choice]})
            (choice.get("delta") or {}).pop("content", None)
            choice.pop("text", None)
            if any(choice.get("delta") or ()) or choice["finish_reason"]:
                rest.append(choice)
        if frame.get("usage"):
            rest.append(frame["usage"])
    return texts, rest, answer.events[-1]


def common(frame: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is new in each answer, and what the engine had in its cache."""
    (frame.get("usage") or {}).pop("prompt_tokens_details", None)
    return {key: value for key, value in frame.items() if key not in CHANGES_WITH_EVERY_ANSWER}


def assert_error_in_openai_shape(answer: Answer) -> None:
    """Hold an error against the shape that OpenAI's clients parse."""
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"] in TYPES
    assert isinstance(error["param"], str | None)
    assert error["code"] in CODES
    assert answer.headers["x-should-retry"] in ("true", "false")
