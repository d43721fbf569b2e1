"""`hexsage simulate`, end to end on a small trace."""

import csv
import io
import json
from pathlib import Path

import pytest

from gateway.cli import simulate
from tests.cli.commands import command, write_trace

QUICK = ("--count", "20", "--seeds", "2", "--load", ".5", "--workers", "1")
TWO = ("--policies", "least_backlog+fcfs,hexsage")


def test_the_table_shows_every_policy_against_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command(
        simulate, "--trace", write_trace(tmp_path), "--fleet", "A100,A6000", *QUICK, *TWO
    )

    out = capsys.readouterr().out
    assert code == 0
    assert "least_backlog+fcfs" in out
    assert "Simulated, not measured" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_same_command_gives_the_same_figures(tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    words = ("--trace", write_trace(tmp_path), "--fleet", "A100,A6000", *QUICK, *TWO)

    command(simulate, *words, "--json", str(first))
    command(simulate, *words, "--json", str(second))

    assert json.loads(first.read_text())["rows"] == json.loads(second.read_text())["rows"]


def test_csv_can_go_to_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(
        simulate, "--trace", write_trace(tmp_path), "--fleet", "A100", *QUICK, *TWO, "--csv", "-"
    )

    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["policy"] for row in rows] == ["least_backlog+fcfs", "hexsage"]
    assert float(rows[1]["p95_lower_by_mean"]) > 0
    assert rows[0]["p95_lower_by_mean"] == ""


def test_what_if_is_shown_beside_what_is(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code = command(
        simulate,
        *("--trace", write_trace(tmp_path), "--fleet", "A100,A6000", *QUICK, *TWO),
        *("--add", "L40S", "--fail", "a100-0@2:9", "--misprofile", "a6000-0=2"),
        *("--json", str(out), "--png", str(tmp_path / "out.png")),
    )

    record = json.loads(out.read_text())
    assert code == 0
    assert list(record["backends"]) == ["as given", "+L40S, a100-0@2:9 down, a6000-0=2 slow"]
    assert [row["what_if_p95"] is None for row in record["rows"]] == [True, True, False, False]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_slower_engine_makes_latency_longer(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command(
        simulate,
        *("--trace", write_trace(tmp_path), "--fleet", "A100", *QUICK, "--policies", "hexsage"),
        *("--misprofile", "a100-0=3", "--json", str(out)),
    )

    [_, slow] = json.loads(out.read_text())["rows"]
    assert slow["what_if_p95"]["low"] > 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(("--fleet", "B200"), "no built-in profile", id="gpu"),
        pytest.param(("--fleet", "A100", "--policies", "best"), "no policy 'best'", id="policy"),
        pytest.param(("--fleet", "A100", "--policies", "edf,edf"), "twice", id="twice"),
        pytest.param(("--fleet", "A100", "--fail", "x@1:2"), "no backend 'x'", id="backend"),
        pytest.param(("--fleet", "A100", "--load", "0"), "above 0", id="load"),
        pytest.param(("--fleet", "A100", "--seeds", "1.5"), "whole number", id="seeds"),
        pytest.param(("--fleet", "A100", "--png", "no/x.png"), "there is no no", id="folder"),
        pytest.param(("--fleet", "A100", "--json", "/"), "'/' is a folder", id="file"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    code = command(simulate, "--trace", write_trace(tmp_path), *words)

    assert code == 2
    assert complaint in capsys.readouterr().err
