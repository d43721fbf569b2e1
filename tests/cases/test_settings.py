"""Settings that are said to do something, do it."""

import os
import resource
import socket
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import a_process, free_port


@pytest.mark.parametrize(("level", "is_told"), [("warning", False), ("debug", True)])
def test_the_log_level_holds_for_every_logger(tmp_path: Path, level: str, is_told: bool) -> None:
    """Case 192: the server's own, and by the environment as by the command line."""
    port = free_port()
    config = tmp_path / "backends.yaml"
    config.write_text("backends: [{name: a, url: 'http://127.0.0.1:1', model: m1}]\n")
    log = tmp_path / "log"
    words = ("serve", "--config", str(config), "--port", str(port), "--log-level", level)
    with a_process(*words, ready_url=f"http://127.0.0.1:{port}/healthz", log=log):
        pass

    said = log.read_text()
    assert ("Application startup complete" in said) is is_told
    assert "probe failed" in said


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_too_many_connections_harm_nobody_who_is_there(tmp_path: Path) -> None:
    """Case 94: no files are left; what runs goes on, nothing spins, and room that comes is used."""
    engine, port = free_port(), free_port()
    config = tmp_path / "backends.yaml"
    config.write_text(f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}'}}]\n")
    emulate = ("emulate", "--port", str(engine), "--speed", "1")
    serve = ("serve", "--config", str(config), "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    body = {"model": "m1", "prompt": "hi", "max_tokens": 100, "vllm_xargs": {"out_len": 100}}
    with (
        a_process(*emulate, ready_url=f"http://127.0.0.1:{engine}/health", log=tmp_path / "engine"),
        a_process(*serve, ready_url=f"{url}/readyz", log=tmp_path / "log") as gateway,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (60, 60))
            crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(90)]
            before_s = processor_s(gateway.pid)
            text = answer.read()
            used_s = processor_s(gateway.pid) - before_s
        for connection in crowd:
            connection.close()

        assert text.endswith(b"data: [DONE]\n\n")
        assert used_s < 1.0
        assert client.post("/v1/completions", json={**body, "max_tokens": 2}).status_code == 200


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
