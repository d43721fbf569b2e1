"""The async `openai` client with a workflow of three calls and one deadline for all of them.

python examples/clients/openai_workflow.py http://127.0.0.1:8080/v1 m1
"""

import asyncio
import sys
from uuid import uuid4

from openai import AsyncOpenAI


async def main(base_url: str = "http://127.0.0.1:8080/v1", model: str = "m1") -> None:
    """Draft twice at the same time, then choose."""
    workflow = {
        "x-workflow-id": f"slogan-{uuid4()}",
        "x-workflow-name": "slogan",
        "x-workflow-deadline-ms": "30000",
    }
    async with AsyncOpenAI(base_url=base_url, api_key="unused", default_headers=workflow) as client:

        async def ask(stage: str, prompt: str, *, final: bool = False) -> str:
            headers = {"x-workflow-stage": stage} | ({"x-workflow-final": "true"} if final else {})
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=32,
                extra_headers=headers,
            )
            return answer.choices[0].message.content or ""

        drafts = await asyncio.gather(
            ask("draft", "Write a slogan for a bakery."),
            ask("draft", "Write a funny slogan for a bakery."),
        )
        print(await ask("choose", "Choose the better one:\n" + "\n".join(drafts), final=True))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
