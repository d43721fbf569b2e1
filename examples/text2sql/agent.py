"""The agent as a LangGraph graph.

    extract_keywords -> link_schema -> candidate x 2 -> generate_unit_test -> evaluate -> answer

A candidate runs its query and has it revised while that fails, a few times at most. A model that
talks nonsense (an emulated engine does) still takes the agent through every stage: what cannot be
read is replaced by something that can.
"""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from examples.text2sql import prompts
from examples.text2sql.calls import Workflow
from examples.text2sql.choices import Candidate, keywords, passed, tables, unit_tests, vote
from examples.text2sql.database import Database, Ran, sql_in

MAX_REVISIONS = 2
UNIT_TESTS = 3


class State(TypedDict, total=False):
    """What the nodes hand on."""

    question: str
    words: list[str]
    values: str
    schema: str
    fallback_sql: str
    candidates: Annotated[list[Candidate], operator.add]
    tests: list[str]
    chosen: Candidate
    sentence: str


class Task(TypedDict):
    """One candidate's share of the work."""

    origin: str
    question: str
    schema: str
    values: str
    fallback_sql: str


def build(
    workflow: Workflow, database: Database
) -> "CompiledStateGraph[State, None, State, State]":
    """Return the graph of one question; its calls go through `workflow`."""
    nodes = _Nodes(workflow, database)
    graph = StateGraph(State)
    graph.add_node("extract_keywords", nodes.extract_keywords)
    graph.add_node("link_schema", nodes.link_schema)
    graph.add_node("candidate", nodes.candidate, input_schema=Task)
    graph.add_node("generate_unit_test", nodes.generate_unit_test)
    graph.add_node("evaluate", nodes.evaluate)
    graph.add_node("answer", nodes.answer)
    graph.add_edge(START, "extract_keywords")
    graph.add_edge("extract_keywords", "link_schema")
    graph.add_conditional_edges("link_schema", _one_task_a_prompt, ["candidate"])
    graph.add_edge("candidate", "generate_unit_test")
    graph.add_edge("generate_unit_test", "evaluate")
    graph.add_edge("evaluate", "answer")
    graph.add_edge("answer", END)
    return graph.compile()


def _one_task_a_prompt(state: State) -> list[Send]:
    shared = {name: state[name] for name in ("question", "schema", "values", "fallback_sql")}
    return [Send("candidate", {"origin": origin, **shared}) for origin in prompts.CANDIDATES]


class _Nodes:
    def __init__(self, workflow: Workflow, database: Database) -> None:
        self._ask = workflow.ask
        self._database = database

    async def extract_keywords(self, state: State) -> dict[str, Any]:
        prompt = prompts.KEYWORDS.format(question=state["question"])
        answer = await self._ask("extract_keywords", prompt, max_tokens=64)
        return {"words": keywords(answer, state["question"])}

    async def link_schema(self, state: State) -> dict[str, Any]:
        found = await asyncio.to_thread(self._database.find, state["words"])
        values = "\n".join(found) or "(none)"
        prompt = prompts.LINK_SCHEMA.format(
            schema=self._database.schema(), values=values, question=state["question"]
        )
        answer = await self._ask("link_schema", prompt, max_tokens=48)
        chosen = tables(answer, self._database.tables)
        return {
            "values": values,
            "schema": self._database.schema(chosen),
            "fallback_sql": f'SELECT count(*) FROM "{chosen[0]}"',
        }

    async def candidate(self, state: Task) -> dict[str, Any]:
        shown = {name: state[name] for name in ("schema", "values", "question")}
        prompt = prompts.CANDIDATES[state["origin"]].format(**shown)
        sql = sql_in(await self._ask("generate_candidate", prompt, max_tokens=512))
        ran = await self._run(sql)
        revisions = 0
        while ran.error is not None and revisions < MAX_REVISIONS:
            prompt = prompts.REVISE.format(
                schema=state["schema"],
                question=state["question"],
                sql=sql or "(none)",
                result=ran.shown(),
            )
            sql = sql_in(await self._ask("revise", prompt, max_tokens=384)) or sql
            ran = await self._run(sql)
            revisions += 1
        if sql is None or ran.error is not None:
            sql = state["fallback_sql"]
            ran = await self._run(sql)
            return {"candidates": [Candidate("fallback", sql, ran, revisions)]}
        return {"candidates": [Candidate(state["origin"], sql, ran, revisions)]}

    async def generate_unit_test(self, state: State) -> dict[str, Any]:
        prompt = prompts.UNIT_TESTS.format(
            count=UNIT_TESTS, question=state["question"], candidates=_listed(state["candidates"])
        )
        answer = await self._ask("generate_unit_test", prompt, max_tokens=160)
        return {"tests": unit_tests(answer, UNIT_TESTS)}

    async def evaluate(self, state: State) -> dict[str, Any]:
        candidates = state["candidates"]
        asked = [
            prompts.EVALUATE.format(
                question=state["question"], test=test, candidates=_listed(candidates)
            )
            for test in state["tests"]
        ]
        async with asyncio.TaskGroup() as group:
            verdicts = [
                group.create_task(self._ask("evaluate", prompt, max_tokens=48)) for prompt in asked
            ]
        marks = [passed(verdict.result(), len(candidates)) for verdict in verdicts]
        points = [sum(mark) for mark in zip(*marks, strict=True)]
        return {"chosen": vote(candidates, points)}

    async def answer(self, state: State) -> dict[str, Any]:
        chosen = state["chosen"]
        prompt = prompts.ANSWER.format(
            question=state["question"], sql=chosen.sql, result=chosen.ran.shown(10)
        )
        return {"sentence": await self._ask("answer", prompt, max_tokens=64, final=True)}

    async def _run(self, sql: str | None) -> Ran:
        if sql is None:
            return Ran(error="there is no query in the answer")
        return await asyncio.to_thread(self._database.run, sql)


def _listed(candidates: list[Candidate]) -> str:
    return "\n\n".join(
        f"Candidate {number}: {candidate.sql}\nResult:\n{candidate.ran.shown()}"
        for number, candidate in enumerate(candidates, start=1)
    )
