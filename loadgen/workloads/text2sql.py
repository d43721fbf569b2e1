"""The built-in text-to-SQL workload: seven stages, as the recorded HexGen-Flow runs have them.

Stage order, fan-outs, repeats, length quantiles and correlations follow statistics of 419
recorded workflows (HexGen-Flow, arXiv 2505.05286); no recorded workflow is in here. Two things
tie the calls of a workflow together, as in the recordings: its database's schema, which makes up
most of the prompts of `generate_candidate` and `revise`, and how hard its question is.
"""

from random import Random

from gateway.sim.trace import (
    CANDIDATE_STAGE,
    CANDIDATE_TEMPLATE_TOKENS,
    TEXT2SQL,
    TEXT2SQL_TEMPLATE_TOKENS,
    TraceCall,
    TraceStep,
    TraceWorkflow,
)
from loadgen.lengths import Quantiles, near

SQL_S = 0.2
"""A query on a small database, before `revise` and `unit_tester`; the recordings have no times."""

KEYWORDS_SHARE = 0.82
"""Workflows in which the retriever's first run leads to extract_keywords."""
ENDS_EARLY_SHARE = 0.036
"""Workflows without generate_unit_test and evaluate."""
LARGE_SCHEMA_SHARE = 0.39

REVISIONS = {  # how often the query is revised, by whether the schema is large
    False: ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [40, 14, 7, 10, 8, 7, 5, 5, 2, 2]),
    True: ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [10, 10, 5, 9, 8, 10, 8, 8, 8, 17, 7]),
}
EVALUATIONS = ([3, 4, 5, 6, 7, 8, 11], [6, 25, 33, 31, 1, 1, 3])

SCHEMA = {
    False: Quantiles({0.02: 2577, 0.3: 2660, 0.5: 2790, 0.98: 3010}),
    True: Quantiles({0.02: 4700, 0.5: 4790, 0.98: 4990}),
}
REVISE_EXTRA_TOKENS = 65
"""The failed query and its error, on top of template and schema."""

RETRIEVER_FIRST_PROMPT = 301
RETRIEVER_FIRST_OUT = Quantiles({0.05: 5, 0.5: 12, 0.9: 30, 0.98: 46})
RETRIEVER_OTHERS = ((304, 5), (308, 5), (312, 4))
"""Prompt and answer of the retriever's other three runs: hardly any variation was recorded."""
KEYWORDS_PROMPT = Quantiles({0.02: 635, 0.05: 641, 0.5: 675, 0.95: 712, 0.99: 750})
KEYWORDS_OUT = Quantiles({0.01: 15, 0.05: 21, 0.5: 47, 0.95: 73, 0.99: 119})
CANDIDATE_OUT = (
    Quantiles({0.01: 360, 0.05: 475, 0.25: 685, 0.5: 846, 0.75: 984, 0.95: 1012, 0.99: 1026}),
    Quantiles({0.01: 274, 0.05: 375, 0.25: 451, 0.5: 524, 0.75: 617, 0.95: 677, 0.99: 772}),
)
REVISE_OUT = Quantiles({0.01: 10, 0.05: 13, 0.2: 50, 0.5: 106, 0.9: 170, 0.95: 312, 0.985: 1011})
UNIT_TEST_PROMPT = Quantiles({0.01: 699, 0.05: 813, 0.5: 1109, 0.95: 1467, 0.99: 1553})
UNIT_TEST_OUT = Quantiles({0.01: 31, 0.05: 42, 0.5: 100, 0.95: 134, 0.99: 245})
EVALUATE_PROMPT = Quantiles({0.01: 588, 0.05: 676, 0.5: 1030, 0.9: 1409, 0.95: 1901})
EVALUATE_OUT = Quantiles({0.89: 22, 0.95: 96, 0.99: 169})
UNIT_TESTS = ((271, 6), (275, 4), (278, 4))
"""Prompt and answer of the unit tester's three runs."""


def text2sql(rng: Random, count: int) -> list[TraceWorkflow]:
    """Draw `count` workflows."""
    return [_workflow(rng) for _ in range(count)]


def _workflow(rng: Random) -> TraceWorkflow:
    question = rng.gauss(0.0, 1.0)
    is_large = rng.random() < LARGE_SCHEMA_SHARE
    schema_tokens = SCHEMA[is_large].at(near(question, 0.4, rng))
    steps = [*_retrieval(rng, question), _candidates(rng, question, schema_tokens)]
    revise_tokens = TEXT2SQL_TEMPLATE_TOKENS["revise"] + schema_tokens + REVISE_EXTRA_TOKENS
    counts, weights = REVISIONS[is_large]
    for _ in range(rng.choices(counts, weights)[0]):
        output_tokens = REVISE_OUT.at(near(question, 0.4, rng))
        steps.append(_single("revise", revise_tokens, output_tokens, SQL_S))
    first, second, third = (_single("unit_tester", *lengths, SQL_S) for lengths in UNIT_TESTS)
    if rng.random() < ENDS_EARLY_SHARE:
        steps += [first, second, third]
    else:
        unit_test, evaluation = _unit_test_and_evaluation(rng, question)
        steps += [first, unit_test, second, evaluation, third]
    return TraceWorkflow(name=TEXT2SQL, steps=tuple(steps))


def _retrieval(rng: Random, question: float) -> list[TraceStep]:
    found = RETRIEVER_FIRST_OUT.at(rng.gauss(0.0, 1.0))
    steps = [_single("Information Retriever", RETRIEVER_FIRST_PROMPT, found)]
    if rng.random() < KEYWORDS_SHARE:
        steps.append(
            _single(
                "extract_keywords",
                KEYWORDS_PROMPT.at(near(question, 0.92, rng)),
                KEYWORDS_OUT.at(near(question, 0.92, rng)),
            )
        )
    steps.extend(
        _single("Information Retriever", prompt_tokens, output_tokens)
        for prompt_tokens, output_tokens in RETRIEVER_OTHERS
    )
    return steps


def _candidates(rng: Random, question: float, schema_tokens: int) -> TraceStep:
    return TraceStep(
        calls=tuple(
            TraceCall(
                stage=CANDIDATE_STAGE,
                prompt_tokens=template_tokens + schema_tokens,
                output_tokens=lengths.at(near(question, 0.85, rng)),
                template=f"{CANDIDATE_STAGE}-{agent}",
                template_tokens=template_tokens,
            )
            for agent, (template_tokens, lengths) in enumerate(
                zip(CANDIDATE_TEMPLATE_TOKENS, CANDIDATE_OUT, strict=True), start=1
            )
        )
    )


def _unit_test_and_evaluation(rng: Random, question: float) -> tuple[TraceStep, TraceStep]:
    unit_test = _single(
        "generate_unit_test",
        UNIT_TEST_PROMPT.at(near(question, 0.9, rng)),
        UNIT_TEST_OUT.at(near(question, 0.15, rng)),
    )
    evaluated = EVALUATE_PROMPT.at(near(question, 0.9, rng))
    counts, weights = EVALUATIONS
    evaluation = TraceStep(
        calls=tuple(
            _call("evaluate", evaluated, EVALUATE_OUT.at(rng.gauss(0.0, 1.0)))
            for _ in range(rng.choices(counts, weights)[0])
        )
    )
    return unit_test, evaluation


def _single(stage: str, prompt_tokens: int, output_tokens: int, tool_s: float = 0.0) -> TraceStep:
    return TraceStep(calls=(_call(stage, prompt_tokens, output_tokens),), tool_s=tool_s)


def _call(stage: str, prompt_tokens: int, output_tokens: int) -> TraceCall:
    return TraceCall(
        stage=stage,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        template=stage,
        template_tokens=min(TEXT2SQL_TEMPLATE_TOKENS[stage], prompt_tokens),
    )
