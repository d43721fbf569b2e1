"""Where the files that are tested here lie, and the tools that check them."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def document(path: Path) -> dict[str, object]:
    """Return the YAML mapping in a file."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def tool(name: str) -> str:
    """Return the path of a program of this environment or machine, or skip the test."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (the extra `deploy` brings it, or the system)")
    return found
