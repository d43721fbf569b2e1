"""Which paths an engine offers, by its kind, its own list of them, or the configuration (pure)."""

import re
from collections.abc import Collection

import orjson

TGI = frozenset(
    {
        "/",
        "/chat_tokenize",
        "/generate",
        "/generate_stream",
        "/info",
        "/invocations",
        "/tokenize",
        "/v1/chat/completions",
        "/v1/completions",
        "/vertex",
    }
)
"""What TGI 3 routes (router/src/server.rs)."""
ONLY_TGI = frozenset({"/", "/generate", "/generate_stream", "/info"})
CORE = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/pooling", "/score"}
)
"""A list without any of these is not one of an engine's API."""
_PARAMETER = re.compile(r"\{[^}]*\}")


def offers(path: str, kind: str, listed: Collection[str] | None) -> bool:
    """Return whether an engine has a path. Unlisted, it is taken to have all that its kind may."""
    if listed is not None:
        return nameless(path) in listed
    return path in TGI if kind == "tgi" else path not in ONLY_TGI


def nameless(path: str) -> str:
    """Return the path with nameless parameters: engines call them what they like."""
    return _PARAMETER.sub("{}", path)


def read_openapi(document: bytes) -> frozenset[str] | None:
    """Return the paths in an OpenAPI document; None if it does not describe an engine's API."""
    try:
        said = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    paths = said.get("paths") if isinstance(said, dict) else None
    if not isinstance(paths, dict) or not CORE & paths.keys():
        return None
    return frozenset(nameless(path) for path in paths)
