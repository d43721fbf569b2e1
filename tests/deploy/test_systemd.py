"""The systemd unit: systemd reads it, and it starts what the documents say."""

import configparser
import subprocess
import sys
from pathlib import Path

from gateway.config.sources import load_settings
from tests.deploy.places import DEPLOY, ROOT, tool

UNIT = DEPLOY / "systemd" / "hexsage.service"


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser["Service"]


def test_systemd_has_nothing_to_complain_of(tmp_path: Path) -> None:
    # It wants to see the program, which is installed only where the unit is.
    there = UNIT.read_text(encoding="utf-8").replace("/opt/hexsage/bin/hexsage", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(there)

    command = [tool("systemd-analyze"), "verify", "--man=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (0, "")


def test_it_is_as_confined_as_it_was() -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", "--threshold=20", str(UNIT)]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout


def test_it_serves_and_has_the_time_to_drain() -> None:
    assert service()["ExecStart"].split()[1:3] == ["serve", "--config"]
    grace_s = float(service()["TimeoutStopSec"])
    assert grace_s > load_settings(ROOT / "backends.yaml").drain_timeout_s
