"""`hexsage tune`, end to end on a small trace."""

import json
from pathlib import Path

import pytest

from gateway.cli import tune
from tests.cli.commands import command, write_trace

QUICK = ("--count", "60", "--seeds", "4", "--workers", "1")


def test_a_wrong_alpha_is_told_with_the_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curve.json"
    code = command(
        tune,
        *("--trace", write_trace(tmp_path), "--fleet", "A100,A6000", *QUICK),
        *("--policy", "hexgen:alpha=0.9", "--load", "1", "--json", str(out)),
    )

    said = capsys.readouterr().out
    assert code == 0
    assert "alpha=0.3" in said
    assert "better by" in said
    assert json.loads(out.read_text())["winner"]["alpha"] < 0.9


def test_on_one_backend_there_is_nothing_to_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command(
        tune, "--trace", write_trace(tmp_path), "--fleet", "A100", *QUICK, "--policy", "hexgen"
    )

    assert code == tune.LEAVE_IT
    assert "leave it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--policy", "edf"), "no settings to tune"),
        (("--policy", "best"), "no policy 'best'"),
        (("--objective", "joy"), "invalid choice"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    code = command(tune, "--trace", write_trace(tmp_path), "--fleet", "A100", *words)

    assert code == 2
    assert complaint in capsys.readouterr().err
