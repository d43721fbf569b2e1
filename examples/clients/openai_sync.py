"""The plain `openai` client: one answer, then a stream. Only the base URL is another.

python examples/clients/openai_sync.py http://127.0.0.1:8080/v1 m1
"""

import sys

from openai import OpenAI


def main(base_url: str = "http://127.0.0.1:8080/v1", model: str = "m1") -> None:
    """Ask twice."""
    with OpenAI(base_url=base_url, api_key="unused") as client:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name a river."}],
            max_tokens=16,
            # A call without a workflow may have a deadline of its own.
            extra_headers={"x-request-deadline-ms": "20000"},
        )
        print(answer.choices[0].message.content)

        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Count to five."}],
            max_tokens=32,
            stream=True,
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
