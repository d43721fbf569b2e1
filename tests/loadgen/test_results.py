"""Tests of loadgen.results."""

from pathlib import Path

import orjson
import pytest

from loadgen.report import cells_of
from loadgen.results import Result, ResultError, read, to_json
from tests.loadgen.builders import a_call_record, a_run


def a_result(*latencies_s: float, policy: str = "base", plan: str = "plan") -> Result:
    run = a_run(latencies_s or [1.0, 2.0, 3.0], policy=policy, plan=plan)
    run.calls.append(a_call_record(latency_s=5.0, ttft_s=1.0))
    return Result.of(
        cells_of([run], base_s=1.5, cut=0.0),
        settings={"title": "A test"},
        base_s=1.5,
        slo_scale=3.0,
    )


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(to_json(a_result()))

    assert read(path) == a_result()


def test_cells_carry_the_names_of_vllm_bench_serve() -> None:
    (cell,) = orjson.loads(to_json(a_result()))["cells"]

    assert cell["completed"] == 4
    assert cell["mean_ttft_ms"] == 1000
    assert cell["mean_e2el_ms"] == pytest.approx((1 + 2 + 3 + 5) / 4 * 1000)
    assert {
        "duration",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "median_ttft_ms",
        "p99_tpot_ms",
        "p99_e2el_ms",
    } <= cell.keys()


def test_a_file_of_vllm_bench_serve_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text('{"backend": "vllm", "request_throughput": 2.5}')

    assert read(path) == {"backend": "vllm", "request_throughput": 2.5}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param("{", "not valid JSON", id="not JSON"),
        pytest.param("[]", "not a result file", id="a list"),
        pytest.param("{}", "neither a result.json", id="something else"),
        pytest.param(
            '{"format": "hexsage-loadgen/1", "settings": {}}', "damaged: KeyError", id="cut off"
        ),
    ],
)
def test_what_is_no_result_is_named_with_its_reason(
    tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)

    with pytest.raises(ResultError, match=f"result.json: {complaint}"):
        read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="cannot be read: No such file"):
        read(tmp_path / "nothing.json")
