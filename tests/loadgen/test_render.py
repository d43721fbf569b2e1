"""Tests of loadgen.render."""

from io import StringIO

from rich.console import Console

from loadgen.records import Run
from loadgen.render import HEADER, sentences, table, to_html, to_markdown, to_terminal
from loadgen.report import cells_of
from loadgen.results import Result
from tests.loadgen.builders import a_run

SLOW, FAST = [20.0] * 40, [9.0] * 40


def result_of(runs: list[Run]) -> Result:
    return Result.of(
        cells_of(runs, base_s=5.0, cut=0.0),
        settings={"title": "A & B", "seeds": [1, 2]},
        base_s=5.0,
        slo_scale=2.0,
    )


def a_result(*, failed: bool = False) -> Result:
    latencies: list[float | None] = [*FAST[1:], None] if failed else [*FAST]
    return result_of([a_run(SLOW, policy="base"), a_run(latencies, policy="<better>")])


def test_a_row_has_the_figures_of_its_cell() -> None:
    base, better = (dict(zip(HEADER, row, strict=True)) for row in table(a_result()))

    assert base["P95 s"] == "20.0"
    assert base["on time"] == "0%"
    assert base["P95 lower by"] == "-"
    assert better["on time"] == "100%"
    assert better["P95 lower by"] == "2.22x [2.22, 2.22]"
    assert better["TTFT s"] == "-"


def test_a_sentence_says_what_a_policy_gains_at_each_rate() -> None:
    runs = [
        a_run(latencies, policy=policy, qps=qps)
        for qps, slow, fast in ((1.0, SLOW, FAST), (2.0, SLOW, SLOW), (3.0, FAST, SLOW))
        for policy, latencies in (("base", slow), ("other", fast))
    ]

    assert sentences(result_of(runs)) == [
        "other against base: P95 workflow latency 2.22x [2.22, 2.22] lower at 1/s; "
        "no different beyond noise (ratio 1.00 [1.00, 1.00]) at 2/s; "
        "2.22x [2.22, 2.22] higher at 3/s."
    ]


def test_the_terminal_shows_table_sentences_and_warnings() -> None:
    text = StringIO()
    to_terminal(a_result(failed=True), Console(file=text, width=200))

    assert "<better>" in text.getvalue()
    assert "2.22x [2.22, 2.22] lower at 1/s" in text.getvalue()
    assert "beware: <better> at 1/s: calls failed (1 x connect)" in text.getvalue()


def test_markdown_has_a_table_and_the_settings() -> None:
    text = to_markdown(a_result())

    assert text.startswith("# A & B\n")
    assert "| rate /s | policy |" in text
    assert "| seeds | 1, 2 |" in text


def test_the_page_stands_alone_and_escapes_what_it_shows() -> None:
    page = to_html(a_result(failed=True), {"latency": b"<svg></svg>"})

    assert "<title>A &amp; B</title>" in page
    assert "&lt;better&gt;" in page
    assert "<better>" not in page
    assert 'src="data:image/svg+xml;base64,' in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "calls failed (1 x connect)" in page
