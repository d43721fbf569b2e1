"""The house: imports point inwards, modules have their tests and can be read in one sitting."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_LINES = 350

TESTED_ELSEWHERE = {
    # Words without behaviour: every test of the core speaks them.
    "gateway/core/call.py": "tests/core/test_load.py",
    "gateway/core/commands.py": "tests/core/test_scheduler.py",
    # Parts of the scheduler, tested through it.
    "gateway/core/changes.py": "tests/core/test_reconfigured.py",
    "gateway/core/decisions.py": "tests/core/test_scheduler.py",
    "gateway/core/ledger.py": "tests/core/test_scheduler.py",
    "gateway/core/specs.py": "tests/core/test_workflow.py",
    "gateway/core/events.py": "tests/core/test_scheduler.py",
    "gateway/core/outcomes.py": "tests/core/test_scheduler.py",
    "gateway/core/types.py": "tests/core/test_fleet.py",
    "gateway/backends/base.py": "tests/backends/test_relay.py",
    "gateway/predictor/chore.py": "tests/predictor/test_owner.py",
    "gateway/runtime/clock.py": "tests/runtime/test_driver.py",
    # Parts of the engine model, tested through it.
    "gateway/sim/batching.py": "tests/sim/test_engine.py",
    "gateway/sim/engine_calls.py": "tests/sim/test_engine.py",
    "gateway/sim/kv_cache.py": "tests/sim/test_engine.py",
    # Tested over HTTP, by what a client or an engine sees, not by module.
    "gateway/api/asgi.py": "tests/api/test_streams.py",
    "gateway/api/door.py": "tests/api/test_endpoints.py",
    "gateway/api/kept.py": "tests/api/test_endpoints.py",
    "gateway/api/openapi.py": "tests/fuzz/test_openapi.py",
    "gateway/api/cycle.py": "tests/api/test_protocol.py",
    "gateway/api/said.py": "tests/api/test_calls.py",
    "gateway/backends/shapes.py": "tests/fuzz/test_bytes.py",
    "gateway/backends/whole.py": "tests/api/test_headers.py",
    "gateway/api/disconnect.py": "tests/api/test_disconnects.py",
    "gateway/api/overview.py": "tests/api/test_live.py",
    "gateway/exposition.py": "tests/deploy/test_prometheus.py",
    "gateway/api/reasons.py": "tests/api/test_requests.py",
    "gateway/api/explain.py": "tests/api/test_headers.py",
    "gateway/api/front.py": "tests/api/test_bodies.py",
    "gateway/api/observe.py": "tests/api/test_queueing.py",
    "gateway/api/openai.py": "tests/api/test_streams.py",
    "gateway/api/responses.py": "tests/api/test_errors.py",
    "gateway/api/snapshots.py": "tests/api/test_admin.py",
    "gateway/api/tenants.py": "tests/api/test_workflows.py",
    "gateway/backends/dialect.py": "tests/backends/test_dialects.py",
    "gateway/backends/engine_errors.py": "tests/backends/test_vllm.py",
    "gateway/backends/engine_metrics.py": "tests/backends/test_health.py",
    "gateway/backends/headers.py": "tests/backends/test_relay.py",
    "gateway/backends/http_client.py": "tests/backends/test_relay.py",
    "gateway/backends/lenient_json.py": "tests/backends/test_relay.py",
    "gateway/emulator/asks.py": "tests/emulator/test_vllm.py",
    "gateway/emulator/tgi_answer_size.py": "tests/emulator/test_tgi.py",
    "gateway/emulator/tgi_answers.py": "tests/emulator/test_tgi.py",
    "gateway/emulator/tgi_fields.py": "tests/emulator/test_tgi.py",
    "gateway/emulator/tgi_metrics.py": "tests/emulator/test_tgi.py",
    "gateway/emulator/tgi_requests.py": "tests/emulator/test_tgi.py",
    # Tested with their neighbours.
    "gateway/config/entry.py": "tests/config/test_sources.py",
    "gateway/config/scheduling.py": "tests/config/test_settings.py",
    "gateway/config/serving.py": "tests/config/test_settings.py",
    "gateway/config/timeouts.py": "tests/config/test_settings.py",
    "gateway/config/tls.py": "tests/config/test_settings.py",
    "gateway/telemetry/watch.py": "tests/api/test_live.py",
    "gateway/telemetry/histogram.py": "tests/telemetry/test_counters.py",
    "gateway/telemetry/gauges.py": "tests/telemetry/test_counters.py",
    "gateway/telemetry/prometheus.py": "tests/telemetry/test_counters.py",
    # Composition and command lines: whole programs.
    "gateway/app.py": "tests/api/test_calls.py",
    "gateway/compiled.py": "tests/test_main.py",
    # Workers: as one, then as processes.
    "gateway/workers/fleet.py": "tests/workers/test_crowd.py",
    "gateway/workers/hub.py": "tests/workers/test_crowd.py",
    "gateway/workers/link.py": "tests/workers/test_wire.py",
    "gateway/workers/proxy.py": "tests/workers/test_crowd.py",
    "gateway/workers/remote.py": "tests/workers/test_parity.py",
    "gateway/workers/scheduler.py": "tests/workers/test_crowd.py",
    "gateway/workers/ways.py": "tests/workers/test_crowd.py",
    "gateway/workers/worker.py": "tests/workers/test_parity.py",
    "gateway/workers/launch.py": "tests/workers/test_processes.py",
    "gateway/workers/parent.py": "tests/workers/test_processes.py",
    "gateway/workers/sockets.py": "tests/workers/test_processes.py",
    "gateway/cli/child.py": "tests/workers/test_processes.py",
    "gateway/cli/scheduler.py": "tests/workers/test_processes.py",
    "gateway/cli/worker.py": "tests/workers/test_processes.py",
    "gateway/cli/listening.py": "tests/cli/test_serve.py",
    "gateway/cli/server.py": "tests/cli/test_serve.py",
    "gateway/clients.py": "tests/api/test_fleet.py",
    "gateway/runtime/run.py": "tests/runtime/test_driver.py",
    "gateway/engines.py": "tests/api/test_fleet.py",
    "gateway/operations.py": "tests/api/test_fleet.py",
    "gateway/reload.py": "tests/api/test_fleet.py",
    "gateway/__main__.py": "tests/test_main.py",
    "gateway/cli/check.py": "tests/test_main.py",
    "gateway/cli/top.py": "tests/e2e/test_looking.py",
    "gateway/emulator/__main__.py": "tests/emulator/test_command.py",
    "loadgen/__main__.py": "tests/loadgen/test_main.py",
}
"""Modules without a test file of their own name, and where to look instead."""


def modules() -> list[str]:
    """Every source module, by its path from the root."""
    paths = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "loadgen").rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def own_test(module: str) -> str:
    """The test file that mirrors a module."""
    path = Path(module)
    folder = path.parent.relative_to("gateway") if path.parts[0] == "gateway" else path.parent
    return str(Path("tests") / folder / f"test_{path.name}")


def test_imports_point_the_way_the_contracts_say() -> None:
    # In a process of its own: the linter silences every logger that other tests listen to.
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout


def test_every_module_has_its_test_file_or_says_where_to_look() -> None:
    for module in modules():
        if not module.endswith("__init__.py") and not (ROOT / own_test(module)).exists():
            assert module in TESTED_ELSEWHERE, f"{module} has no {own_test(module)}"


def test_the_places_to_look_are_there_and_needed() -> None:
    for module, test in TESTED_ELSEWHERE.items():
        assert (ROOT / module).exists(), f"{module} is no more"
        assert (ROOT / test).exists(), f"{test}, said to test {module}, is no more"
        assert not (ROOT / own_test(module)).exists(), f"{module} has its own test file now"


def test_modules_can_be_read_in_one_sitting() -> None:
    long = {
        module
        for module in modules()
        if len((ROOT / module).read_text(encoding="utf-8").splitlines()) > MAX_LINES
    }

    assert not long
