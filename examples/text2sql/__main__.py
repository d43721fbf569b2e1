"""Ask the shop's database some questions; tell what each stage took and whether it was on time.

    python -m examples.text2sql --base-url http://127.0.0.1:8080/v1 --model m1

Works with any OpenAI-compatible server; the key is taken from OPENAI_API_KEY. Behind an emulated
engine the words are nonsense and no answer is right, but every stage runs.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from langchain_openai import ChatOpenAI
from openai import OpenAIError
from pydantic import SecretStr

from examples.text2sql import shop
from examples.text2sql.agent import build
from examples.text2sql.calls import Workflow
from examples.text2sql.database import Database
from examples.text2sql.questions import QUESTIONS, Question

DEFAULT_DEADLINE_MS = 60_000


@dataclass(frozen=True, slots=True)
class StageTime:
    """Calls of one stage, and the seconds from the first one's start to the last one's end."""

    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one question."""

    question: str
    workflow_id: str
    sql: str | None
    origin: str | None
    is_right: bool
    seconds: float
    on_time: bool
    stages: dict[str, StageTime]
    error: str | None = None


async def ask(
    question: Question, model: ChatOpenAI, database: Database, deadline_ms: int
) -> Outcome:
    """Answer one question; a call that fails ends it."""
    workflow = Workflow(model, deadline_ms)
    chosen = error = None
    try:
        state = await build(workflow, database).ainvoke({"question": question.text})
        chosen = state["chosen"]
    except* OpenAIError as group:
        error = str(group.exceptions[0])
    seconds = workflow.elapsed_s
    right = database.run(question.gold_sql).as_answer
    return Outcome(
        question=question.text,
        workflow_id=workflow.id,
        sql=chosen.sql if chosen else None,
        origin=chosen.origin if chosen else None,
        is_right=chosen is not None and chosen.ran.as_answer == right,
        seconds=seconds,
        on_time=error is None and seconds * 1000 <= deadline_ms,
        stages={name: StageTime(*spent) for name, spent in workflow.seconds_by_stage().items()},
        error=error,
    )


async def ask_all(arguments: argparse.Namespace, database: Database) -> list[Outcome]:
    """Ask the questions, some at a time."""
    model = ChatOpenAI(
        base_url=arguments.base_url,
        model=arguments.model,
        api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "unused")),
        temperature=0.2,
        max_retries=2,
    )
    turns = asyncio.Semaphore(arguments.concurrency)

    async def one(question: Question) -> Outcome:
        async with turns:
            outcome = await ask(question, model, database, arguments.deadline_ms)
            if not arguments.json:
                print(told(outcome, arguments.deadline_ms), flush=True)
            return outcome

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one(q)) for q in QUESTIONS[: arguments.questions]]
    return [task.result() for task in asked]


def told(outcome: Outcome, deadline_ms: int) -> str:
    """Return an outcome as lines for a terminal."""
    verdict = "on time" if outcome.on_time else "late"
    lines = [
        outcome.question,
        f"  {outcome.sql or outcome.error} [{'right' if outcome.is_right else 'not right'}]",
        *(
            f"  {stage:<20} {spent.calls:>2} calls {spent.seconds:8.3f} s"
            for stage, spent in outcome.stages.items()
        ),
        f"  {'all':<20} {sum(s.calls for s in outcome.stages.values()):>2} calls "
        f"{outcome.seconds:8.3f} s of {deadline_ms / 1000:g} s: "
        f"{'failed' if outcome.error else verdict}",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return 0, or 1 if a question failed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.text2sql",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="m1")
    parser.add_argument("--deadline-ms", type=int, default=DEFAULT_DEADLINE_MS, help="a question's")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="how many")
    parser.add_argument("--concurrency", type=int, default=2, help="questions at a time")
    parser.add_argument("--json", action="store_true", help="one JSON object a question")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="text2sql-") as folder:
        path = Path(folder) / "shop.db"
        shop.make(path)
        outcomes = asyncio.run(ask_all(arguments, Database(path)))
    if arguments.json:
        for outcome in outcomes:
            print(json.dumps(asdict(outcome)))
    else:
        on_time = sum(outcome.on_time for outcome in outcomes)
        right = sum(outcome.is_right for outcome in outcomes)
        print(f"{len(outcomes)} questions: {on_time} on time, {right} right")
    return 1 if any(outcome.error for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
