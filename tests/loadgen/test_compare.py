"""Tests of loadgen.compare."""

from loadgen.compare import cell_lines, shared_figures
from loadgen.results import Result
from tests.loadgen.test_results import a_result

SLOW, FAST = [20.0] * 40, [10.0] * 40


def verdicts(first: Result, second: Result) -> list[str]:
    _, lines = cell_lines(first, second)
    return [line[-1] for line in lines]


def test_the_faster_of_two_is_said_when_it_is_beyond_noise() -> None:
    assert verdicts(a_result(*SLOW), a_result(*FAST)) == ["B is faster"]
    assert verdicts(a_result(*FAST), a_result(*SLOW)) == ["B is slower"]
    assert verdicts(a_result(*SLOW), a_result(*SLOW)) == ["no difference beyond noise"]


def test_runs_of_different_plans_are_not_compared() -> None:
    assert verdicts(a_result(*SLOW), a_result(*FAST, plan="other")) == [
        "other plans: not comparable"
    ]


def test_different_policies_are_compared_where_the_files_have_none_in_common() -> None:
    _, lines = cell_lines(a_result(*SLOW, policy="a"), a_result(*FAST, policy="b"))

    assert [line[0] for line in lines] == ["a / b"]


def test_few_workflows_decide_nothing() -> None:
    assert verdicts(a_result(1.0), a_result(2.0)) == ["too few workflows"]


def test_a_vllm_bench_file_is_set_beside_by_the_figures_both_have() -> None:
    bench = {"backend": "vllm", "request_throughput": 2.5, "mean_ttft_ms": 80.0, "other": 1}
    header, rows = shared_figures(bench, a_result())

    assert header == ("figure", "A vllm", "B base 1/s")
    assert [row[0] for row in rows] == ["request_throughput", "mean_ttft_ms"]
    assert rows[1][1:] == ("80", "1000")
