"""Traces: what is read, what is written back, and what is said of files that are wrong."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sim.trace import (
    SINGLE,
    TEXT2SQL,
    TraceCall,
    TraceError,
    TraceStep,
    TraceWorkflow,
    dumps,
    load,
)

CALL = '{"stage": "s", "prompt_tokens": 5, "output_tokens": 3}'


def written(folder: Path, text: str, name: str = "trace.jsonl") -> Path:
    """A file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def call(stage: str, prompt_tokens: int = 9000, output_tokens: int = 50) -> str:
    """One record of a recorded text-to-SQL run."""
    return (
        f'{{"step": "{stage}", "input_length": {prompt_tokens}, "output_length": {output_tokens}}}'
    )


# Our own form

tokens = st.integers(1, 20_000)
names = st.text(min_size=1, max_size=8)


@st.composite
def calls(draw: st.DrawFn) -> TraceCall:
    """Any call."""
    prompt_tokens = draw(tokens)
    return TraceCall(
        stage=draw(names),
        prompt_tokens=prompt_tokens,
        output_tokens=draw(tokens),
        template=draw(st.none() | names),
        template_tokens=draw(st.integers(0, prompt_tokens)),
    )


seconds = st.floats(0, 1e6)
workflows = st.builds(
    TraceWorkflow,
    name=names,
    steps=st.lists(
        st.builds(
            TraceStep, calls=st.lists(calls(), min_size=1, max_size=3).map(tuple), tool_s=seconds
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    arrival_s=st.none() | seconds,
    deadline_s=st.none() | seconds,
)


@given(trace=st.lists(workflows, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back_equal(
    trace: list[TraceWorkflow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(dumps(trace), encoding="utf-8")

    assert load(path) == trace


def test_blank_lines_and_what_may_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, f'\n{{"workflow": "w", "steps": [{{"calls": [{CALL}]}}]}}\n\n')

    (workflow,) = load(path)

    assert (workflow.arrival_s, workflow.deadline_s) == (None, None)
    (step,) = workflow.steps
    assert step == TraceStep(
        calls=(TraceCall(stage="s", prompt_tokens=5, output_tokens=3),), tool_s=0.0
    )


def test_a_byte_order_mark_and_line_separators_in_text_do_no_harm(tmp_path: Path) -> None:
    text = '{"workflow": "a\u2028b", "steps": [{"calls": [' + CALL + "]}]}"
    path = written(tmp_path, "\ufeff" + text)

    (workflow,) = load(path)

    assert workflow.name == "a\u2028b"


# Recorded text-to-SQL runs


def test_a_recorded_run_becomes_steps_with_its_parallel_stages_together(tmp_path: Path) -> None:
    stages = [
        "Information Retriever",
        "Information Retriever",
        "generate_candidate_llama-agent",
        "generate_candidate_llama-agent",
        "revise",
        "evaluate",
        "evaluate",
        "evaluate",
        "unit_tester",
    ]
    records = ", ".join(call(stage) for stage in stages)
    path = written(tmp_path, f'[{{"Text2SQLRequest": [{records}]}}]', "run.json")

    (workflow,) = load(path)

    assert workflow.name == TEXT2SQL
    assert [[c.stage for c in step.calls] for step in workflow.steps] == [
        ["Information Retriever"],
        ["Information Retriever"],
        ["generate_candidate_llama-agent"] * 2,
        ["revise"],
        ["evaluate"] * 3,
        ["unit_tester"],
    ]
    first, second = workflow.steps[2].calls
    # Two agents, each with a template of its own; the second's is shorter.
    assert (first.template_tokens, second.template_tokens) == (9000, 5292)
    assert first.template != second.template
    assert workflow.steps[3].calls[0].template_tokens == 3059


def test_a_recorded_answer_of_no_tokens_counts_as_one(tmp_path: Path) -> None:
    path = written(tmp_path, f'[{{"Text2SQLRequest": [{call("revise", 10, 0)}]}}]', "run.json")

    (workflow,) = load(path)

    assert workflow.steps[0].calls[0].output_tokens == 1


# Single calls


def test_single_calls_arrive_as_long_after_the_first_as_they_did(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,0\n",
        "calls.csv",
    )

    first, second = load(path)

    assert first.name == second.name == SINGLE
    assert first.arrival_s == 0.0
    assert second.arrival_s == pytest.approx(4.314579)
    assert second.steps[0].calls[0] == TraceCall(stage="call", prompt_tokens=396, output_tokens=1)


# What is wrong, and where


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        pytest.param("t.jsonl", "", "empty", id="nothing"),
        pytest.param("t.jsonl", " \n ", "empty", id="blanks"),
        pytest.param("t.jsonl", "{}\n", "line 1: missing key 'workflow'", id="no name"),
        pytest.param("t.jsonl", f'{CALL}\n"x', "line 1: missing key", id="another kind of line"),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"calls": [' + CALL + ']}]}\n{"workflow"',
            "line 2: ",
            id="broken JSON, with its line",
        ),
        pytest.param("t.jsonl", "7\n", "line 1: ", id="a number"),
        pytest.param("t.jsonl", '{"workflow": "w", "steps": 3}', "line 1: ", id="no steps"),
        pytest.param(
            "t.jsonl", '{"workflow": "w", "steps": []}', "line 1: .*at least one step", id="empty"
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"calls": []}]}',
            "line 1: .*at least one call",
            id="a step without calls",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"calls": [{"stage": "s", "prompt_tokens": 0, '
            '"output_tokens": 1}]}]}',
            "line 1: .*>= 1",
            id="an empty prompt",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"calls": [{"stage": "s", "prompt_tokens": 1.5, '
            '"output_tokens": 1}]}]}',
            "line 1: .*whole",
            id="half a token",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"calls": [{"stage": "s", "prompt_tokens": 1, '
            '"output_tokens": 1, "template_tokens": 2}]}]}',
            "line 1: .*template_tokens",
            id="a template longer than its prompt",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"calls": [{"stage": "s", "prompt_tokens": 1, '
            '"output_tokens": 1, "colour": 2}]}]}',
            "line 1: .*colour",
            id="an unknown key",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "steps": [{"tool_s": -1, "calls": [' + CALL + "]}]}",
            "line 1: .*tool_s",
            id="time going backwards",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "arrival_s": NaN, "steps": [{"calls": [' + CALL + "]}]}",
            "line 1: .*number of seconds",
            id="an arrival that is no number",
        ),
        pytest.param(
            "t.jsonl",
            '{"workflow": "w", "deadline_s": "soon", "steps": [{"calls": [' + CALL + "]}]}",
            "line 1: .*number of seconds",
            id="a deadline in words",
        ),
        pytest.param("t.json", "[", "not valid JSON", id="half a list"),
        pytest.param("t.json", "[]", "no workflow in it", id="an empty list"),
        pytest.param("t.json", '[{"x": 1}]', "workflow 0: missing key", id="another list"),
        pytest.param("t.json", "[3]", "workflow 0: ", id="a list of numbers"),
        pytest.param("t.json", '[{"Text2SQLRequest": []}]', "workflow 0: ", id="no calls"),
        pytest.param(
            "t.json",
            '[{"Text2SQLRequest": [{"step": "s", "input_length": "many", "output_length": 1}]}]',
            "workflow 0: .*many",
            id="a length in words",
        ),
        pytest.param(
            "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no workflow", id="an empty table"
        ),
        pytest.param("t.csv", "a,b\n1,2\n", "line 2: missing key 'TIMESTAMP'", id="other columns"),
        pytest.param(
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\nnoon,1,2\n",
            "line 3: .*noon",
            id="a time in words",
        ),
        pytest.param(
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n",
            "line 2: ",
            id="a column too few",
        ),
        pytest.param(
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46,1,2\n2023-11-16T18:15:46Z,1,2\n",
            "line 3: ",
            id="times with and without a zone",
        ),
        pytest.param(
            "t.csv",
            'TIMESTAMP,ContextTokens,GeneratedTokens\n"' + "x" * 200_000 + '",1,2\n',
            "line 1: ",
            id="a field that does not end",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = written(tmp_path, text, name)

    with pytest.raises(TraceError, match=message) as caught:
        load(path)

    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl: cannot be read"):
        load(tmp_path / "nowhere.jsonl")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\x00\x01")

    with pytest.raises(TraceError, match=r"trace\.jsonl: cannot be read"):
        load(path)
