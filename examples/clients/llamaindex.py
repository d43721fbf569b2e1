"""LlamaIndex: `OpenAILike` with a base URL; workflow headers are default headers.

    python examples/clients/llamaindex.py http://127.0.0.1:8080/v1 m1

It needs `llama-index-llms-openai-like`, which wants openai < 3: give it an environment of its own.
"""

import sys
from uuid import uuid4

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def main(base_url: str = "http://127.0.0.1:8080/v1", model: str = "m1") -> None:
    """Ask once, then stream, as two stages of one workflow."""
    workflow = {
        "x-workflow-id": f"llamaindex-{uuid4()}",
        "x-workflow-name": "llamaindex",
        "x-workflow-deadline-ms": "30000",
    }

    def stage(name: str, **more: str) -> OpenAILike:
        return OpenAILike(
            model=model,
            api_base=base_url,
            api_key="unused",
            is_chat_model=True,
            max_tokens=32,
            default_headers=workflow | {"x-workflow-stage": name} | more,
        )

    print(stage("ask").chat([ChatMessage(role="user", content="Name a river.")]).message.content)
    last = stage("stream", **{"x-workflow-final": "true"})
    for part in last.stream_chat([ChatMessage(role="user", content="Count to five.")]):
        print(part.delta or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
