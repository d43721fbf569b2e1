"""What vLLM 0.32's pooling models answer: vectors and scores, made up from hashes (pure).

They take no engine time: the emulator models generation.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from random import Random

import numpy as np
import orjson

from gateway.emulator.asks import Reply
from gateway.emulator.fields import Body, invalid, optional_int, read_fields
from gateway.emulator.options import EngineOptions
from gateway.emulator.prompts import Prompt
from gateway.emulator.vllm_requests import model_of, read_prompts

DIMENSIONS = 64
LABELS = ("no", "yes")

Headers = Mapping[bytes, bytes]
Json = dict[str, object]


def embeddings(headers: Headers, body: bytes, options: EngineOptions) -> Reply:
    """Answer /v1/embeddings and /pooling."""
    fields, model, prompts = _read(headers, body, options, "input")
    size = optional_int(fields, "dimensions") or DIMENSIONS
    as_text = fields.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": number, "embedding": _vector(prompt, size, as_text)}
        for number, prompt in enumerate(prompts)
    ]
    return _reply("embd", model, {"object": "list", "data": data}, prompts)


def classify(headers: Headers, body: bytes, options: EngineOptions) -> Reply:
    """Answer /classify."""
    _, model, prompts = _read(headers, body, options, "input")
    data = []
    for number, prompt in enumerate(prompts):
        yes = _share(prompt)
        data.append(
            {
                "index": number,
                "label": LABELS[yes >= 0.5],
                "probs": [1 - yes, yes],
                "num_classes": len(LABELS),
            }
        )
    return _reply("classify", model, {"object": "list", "data": data}, prompts)


def score(headers: Headers, body: bytes, options: EngineOptions) -> Reply:
    """Answer /score: every text of the one side with its partner, or with the only one."""
    fields = read_fields(headers, body)
    model = model_of(fields, options)
    ones = list(_texts(fields.get("text_1", fields.get("queries"))))
    others = list(_texts(fields.get("text_2", fields.get("documents"))))
    if len(ones) == 1:
        ones *= len(others)
    if not ones or len(ones) != len(others):
        raise invalid("value_error", "text_2", "Mismatched numbers of texts", len(others))
    prompts = read_prompts([f"{a}\n{b}" for a, b in zip(ones, others, strict=True)])
    data = [
        {"index": number, "object": "score", "score": _share(prompt)}
        for number, prompt in enumerate(prompts)
    ]
    return _reply("score", model, {"object": "list", "data": data}, prompts)


def rerank(headers: Headers, body: bytes, options: EngineOptions) -> Reply:
    """Answer /rerank: the best document first."""
    fields = read_fields(headers, body)
    model = model_of(fields, options)
    documents = list(_texts(fields.get("documents")))
    if not isinstance(fields.get("query"), str) or not documents:
        raise invalid("missing", "documents", "Field required", f"<dict of {len(fields)} items>")
    prompts = read_prompts([f"{fields['query']}\n{document}" for document in documents])
    results = [
        {"index": number, "document": {"text": text}, "relevance_score": _share(prompt)}
        for number, (text, prompt) in enumerate(zip(documents, prompts, strict=True))
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    most = optional_int(fields, "top_n") or len(results)
    return _reply("rerank", model, {"results": results[:most]}, prompts)


ANSWERS: Mapping[str, Callable[[Headers, bytes, EngineOptions], Reply]] = {
    "/v1/embeddings": embeddings,
    "/pooling": embeddings,
    "/classify": classify,
    "/score": score,
    "/v1/score": score,
    "/rerank": rerank,
    "/v1/rerank": rerank,
    "/v2/rerank": rerank,
}


def _read(
    headers: Headers, body: bytes, options: EngineOptions, name: str
) -> tuple[Body, str, tuple[Prompt, ...]]:
    fields = read_fields(headers, body)
    model = model_of(fields, options)
    if name not in fields:
        raise invalid("missing", name, "Field required", f"<dict of {len(fields)} items>")
    return fields, model, read_prompts(fields[name])


def _texts(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        text = item.get("text") if isinstance(item, dict) else item
        if isinstance(text, str):
            yield text


def _vector(prompt: Prompt, size: int, as_text: bool) -> object:
    """Return a vector of length 1; its numbers, or their bytes in base64."""
    random = Random(prompt.digest)
    numbers = np.array([random.gauss(0, 1) for _ in range(size)], dtype="<f4")
    numbers /= np.linalg.norm(numbers)
    return b64encode(numbers.tobytes()).decode() if as_text else numbers.tolist()


def _share(prompt: Prompt) -> float:
    digest = blake2b(str(prompt.digest).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32


def _reply(kind: str, model: str, answer: Json, prompts: tuple[Prompt, ...]) -> Reply:
    tokens = sum(prompt.tokens for prompt in prompts)
    usage = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    head = {"id": f"{kind}-{prompts[0].digest:016x}", "created": 0, "model": model}
    return Reply(200, orjson.dumps({**head, **answer, "usage": usage}))
