"""Which API paths there are, what each needs and what its answers look like: one table."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.backends.base import Shape

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,256}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One path of an engine's API."""

    path: str
    """`{id}` stands for the id of something that an engine keeps."""
    methods: tuple[str, ...] = ("POST",)
    shape: Shape = Shape.JSON
    needs: tuple[str, ...] = ()
    """Body members of which one must be there; the first is named where none is."""
    needs_model: bool = False
    """Without a model's name the call is refused, even if only one is served."""
    generates: bool = False
    """A model writes an answer, whose length can be predicted."""
    is_free: bool = False
    """No model runs for it: it costs next to nothing."""
    streams: bool = False
    """It always streams; others do when the body says so."""
    is_form: bool = False
    """The body is multipart/form-data."""
    is_observed: bool = False
    """Answers that are not streamed to clients are streamed to the gateway."""

    def with_id(self, identity: str) -> str:
        """Return the path for one kept thing."""
        return self.path.replace("{id}", identity)


ENDPOINTS: Mapping[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint(
            path="/v1/chat/completions",
            shape=Shape.CHOICES,
            needs=("messages",),
            needs_model=True,
            generates=True,
        ),
        Endpoint(
            path="/v1/completions",
            shape=Shape.CHOICES,
            needs=("prompt", "prompt_embeds"),
            needs_model=True,
            generates=True,
        ),
        Endpoint(
            path="/v1/responses",
            shape=Shape.RESPONSE,
            needs=("input", "prompt", "previous_response_id", "previous_input_messages"),
            generates=True,
        ),
        Endpoint(
            path="/v1/responses/{id}",
            methods=("GET", "DELETE"),
            shape=Shape.ANY,
            is_free=True,
        ),
        Endpoint(path="/v1/responses/{id}/cancel", shape=Shape.ANY, is_free=True),
        Endpoint(path="/v1/messages", shape=Shape.MESSAGE, needs=("messages",), generates=True),
        Endpoint(path="/v1/messages/count_tokens", needs=("messages",), is_free=True),
        Endpoint(path="/v1/embeddings", needs=("input", "messages")),
        Endpoint(path="/v2/embed", needs=("texts", "inputs", "images")),
        Endpoint(path="/pooling", needs=("input", "messages", "data")),
        Endpoint(path="/classify", needs=("input", "messages")),
        *(
            Endpoint(path=path, needs=("text_1", "queries", "query", "data_1", "items"))
            for path in ("/score", "/v1/score")
        ),
        *(
            Endpoint(path=path, needs=("query",))
            for path in ("/rerank", "/v1/rerank", "/v2/rerank")
        ),
        Endpoint(path="/tokenize", needs=("prompt", "messages", "inputs"), is_free=True),
        Endpoint(path="/detokenize", needs=("tokens",), is_free=True),
        *(
            Endpoint(path=f"/v1/audio/{name}", shape=Shape.ANY, is_form=True)
            for name in ("transcriptions", "translations")
        ),
        Endpoint(path="/generate", shape=Shape.GENERATED, needs=("inputs",), generates=True),
        Endpoint(
            path="/generate_stream",
            shape=Shape.GENERATED,
            needs=("inputs",),
            generates=True,
            streams=True,
        ),
        # The same two in one, told apart by `stream`: the address that TGI's first clients know.
        Endpoint(path="/", shape=Shape.GENERATED, needs=("inputs",), generates=True),
        Endpoint(path="/info", methods=("GET",), is_free=True),
    )
}
"""By path. Everything else is a 404, unless the configuration passes it through."""

_WITH_ID = [
    (endpoint, re.compile(re.escape(path).replace(r"\{id\}", "([^/]+)")))
    for path, endpoint in ENDPOINTS.items()
    if "{id}" in path
]


def observed(endpoints: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """Return them with those observed whose answers can be put together from chunks."""
    return {
        path: replace(endpoint, is_observed=endpoint.shape is Shape.CHOICES)
        for path, endpoint in endpoints.items()
    }


def with_id(path: str) -> tuple[Endpoint, str] | None:
    """Return the endpoint and the id that a path names, if it names one."""
    for endpoint, pattern in _WITH_ID:
        match = pattern.fullmatch(path)
        if match is not None:
            return endpoint, match[1]
    return None


def is_id(text: str) -> bool:
    """Return whether an id is fit to stand in a path."""
    return _ID.fullmatch(text) is not None and text.strip(".") != ""


def passed_through(paths: Iterable[str]) -> dict[str, Endpoint]:
    """Return endpoints for paths that the configuration opens."""
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
    return {path: Endpoint(path=path, methods=methods, shape=Shape.ANY) for path in paths}
