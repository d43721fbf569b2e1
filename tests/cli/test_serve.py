"""`hexsage serve` as a process: TLS, a port for admin, reloads by signal, memory over a kill -9."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which

import pytest

from tests.e2e.processes import free_port

WITHIN_S = 20.0
CALL = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "hi"}]}).encode()


MAY_END = threading.Event()


class Engine(BaseHTTPRequestHandler):
    """An engine that answers everything."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Pass every probe."""
        models = b'{"data":[{"id":"m1"}]}' if self.path == "/v1/models" else b""
        self._say(models)

    def do_POST(self) -> None:
        """Answer every call; one that says so when it may."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if b"wait" in body:
            MAY_END.wait(WITHIN_S)
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        self._say(json.dumps({"choices": [choice], "usage": usage}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def an_engine(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run an engine; give out its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def a_gateway(path: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `hexsage serve`; at the end it must stop by itself and in order."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HEXSAGE_")}
    with (
        (path.parent / "log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(path), *words],
            stdout=log,
            stderr=log,
            env=environment,
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=WITHIN_S) == 0


def ask(
    port: int,
    path: str,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    method: str | None = None,
) -> tuple[int, bytes]:
    """Send one request."""
    connection = (
        http.client.HTTPSConnection("localhost", port, timeout=10, context=tls)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    )
    try:
        headers = {"content-type": "application/json"} if body else {}
        connection.request(method or ("POST" if body else "GET"), path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def until(claim: Callable[[], bool], log: Path) -> None:
    """Wait until something is so; nothing would tell of it."""
    began_at = time.perf_counter()
    while time.perf_counter() - began_at < WITHIN_S:
        try:
            if claim():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def is_ready(port: int, tls: ssl.SSLContext | None = None) -> Callable[[], bool]:
    """Say whether a gateway serves."""
    return lambda: ask(port, "/readyz", tls=tls)[0] == 200


def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    with an_engine() as taken:
        path.write_text(f"backends: [{{name: a, url: 'http://127.0.0.1:{taken}'}}]\n")
        ended = subprocess.run(
            [sys.executable, "-m", "gateway", "serve", "--config", str(path), "--port", str(taken)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    where = f"127.0.0.1:{taken}"
    assert ended.returncode == 1
    assert ended.stderr == f"port: {where} cannot be listened at (Address already in use)\n"


def test_an_admin_port_that_is_taken_is_told_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    with an_engine() as taken:
        path.write_text(
            f"backends: [{{name: a, url: 'http://127.0.0.1:{taken}'}}]\n"
            f"port: 0\nadmin: {{port: {taken}}}\n"
        )
        ended = subprocess.run(
            [sys.executable, "-m", "gateway", "serve", "--config", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ended.returncode == 3
    assert f"'127.0.0.1', {taken}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_admin_may_have_a_port_of_its_own_and_signals_reload(tmp_path: Path) -> None:
    path, port, admin = tmp_path / "b.yaml", free_port(), free_port()
    log = tmp_path / "log"
    with an_engine() as engine:
        text = (
            f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}'}}]\n"
            f"port: {port}\nadmin: {{port: {admin}}}\nwatch_s: 0\n"
        )
        path.write_text(text)
        with a_gateway(path) as process:
            until(is_ready(port), log)

            assert ask(port, "/v1/chat/completions", CALL)[0] == 200
            for inside in ("/admin/state", "/metrics"):
                assert ask(port, inside)[0] == 404
                assert ask(admin, inside)[0] == 200
            assert ask(admin, "/v1/models")[0] == 404
            assert is_ready(admin)()

            path.write_text(text + "models: {alias: {target: m1}}\n")
            process.send_signal(signal.SIGHUP)
            until(lambda: b'"alias"' in ask(port, "/v1/models")[1], log)

            path.write_text("backends: [")
            process.send_signal(signal.SIGHUP)
            until(lambda: "is not YAML" in log.read_text(), log)
            assert ask(port, "/v1/chat/completions", CALL)[0] == 200


@contextmanager
def a_call_under_way(port: int, body: bytes) -> Iterator[http.client.HTTPConnection]:
    """Send a call; its answer is read later."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        yield connection
    finally:
        connection.close()


def is_refused(port: int) -> bool:
    """Whether nobody listens."""
    try:
        ask(port, "/readyz")
    except ConnectionError:
        return True
    return False


WAITS = CALL.replace(b"hi", b"wait")


def test_it_stops_being_ready_before_it_closes_its_door_and_ends_what_it_has(
    tmp_path: Path,
) -> None:
    path, port, log = tmp_path / "b.yaml", free_port(), tmp_path / "log"
    MAY_END.clear()
    with an_engine() as engine:
        path.write_text(
            f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}', max_in_flight: 1}}]\n"
            f"port: {port}\ndrain_grace_s: 2\ndrain_timeout_s: 15\n"
        )
        with a_gateway(path) as process:
            until(is_ready(port), log)
            with a_call_under_way(port, WAITS) as running, a_call_under_way(port, CALL) as queued:
                until(lambda: b"queued 1.0" in ask(port, "/metrics")[1], log)
                process.send_signal(signal.SIGTERM)
                until(lambda: ask(port, "/readyz")[0] == 503, log)
                with a_call_under_way(port, CALL) as late:
                    until(lambda: b"queued 2.0" in ask(port, "/metrics")[1], log)
                    until(lambda: is_refused(port), log)
                    MAY_END.set()

                    for connection in (running, queued, late):
                        assert connection.getresponse().status == 200
            assert process.wait(WITHIN_S) == 0


def test_what_cannot_be_done_in_time_is_told_when_to_come_again(tmp_path: Path) -> None:
    path, port, log = tmp_path / "b.yaml", free_port(), tmp_path / "log"
    MAY_END.clear()
    with an_engine() as engine:
        path.write_text(
            f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}', max_in_flight: 1}}]\n"
            f"port: {port}\ndrain_timeout_s: 1\n"
        )
        with a_gateway(path) as process:
            until(is_ready(port), log)
            with a_call_under_way(port, WAITS) as running, a_call_under_way(port, CALL) as queued:
                until(lambda: b"queued 1.0" in ask(port, "/metrics")[1], log)
                process.send_signal(signal.SIGTERM)

                for connection in (running, queued):
                    answer = connection.getresponse()
                    assert answer.status == 503
                    assert float(answer.headers["retry-after"]) >= 1
                    assert json.loads(answer.read())["error"]["code"] == "shutting_down"
            assert process.wait(WITHIN_S) == 0
            MAY_END.set()


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    path, port, log = tmp_path / "b.yaml", free_port(), tmp_path / "log"
    MAY_END.clear()
    with an_engine() as engine:
        path.write_text(
            f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}'}}]\n"
            f"port: {port}\ndrain_grace_s: 100\n"
        )
        with a_gateway(path) as process:
            until(is_ready(port), log)
            with a_call_under_way(port, WAITS):
                until(lambda: b"in_flight 1.0" in ask(port, "/metrics")[1], log)
                process.send_signal(signal.SIGTERM)
                until(lambda: ask(port, "/readyz")[0] == 503, log)

                process.send_signal(signal.SIGTERM)

                assert process.wait(WITHIN_S) == 0
            MAY_END.set()


def test_what_was_learned_survives_a_kill(tmp_path: Path) -> None:
    path, port, log = tmp_path / "b.yaml", free_port(), tmp_path / "log"
    state = tmp_path / "state"
    with an_engine() as engine:
        path.write_text(
            f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}'}}]\n"
            f"port: {port}\nstate_dir: {state}\npolicy: {{name: hexgen}}\n"
        )

        def alpha() -> object:
            return json.loads(ask(port, "/admin/policy")[1])["alpha"]

        with a_gateway(path):
            until(is_ready(port), log)
            assert ask(port, "/admin/policy", b'{"alpha": 0.25}', method="PUT")[0] == 200
            assert alpha() == 0.25
        assert (state / "scheduler.json").exists()

        with a_gateway(path) as process:
            until(is_ready(port), log)
            assert alpha() == 0.25
            process.kill()
            process.wait()

        (state / "scheduler.json").write_bytes(b'{"version": 1, "cr')
        with a_gateway(path):
            until(is_ready(port), log)
            assert alpha() == 0.5
            assert "scheduler.json.corrupt" in log.read_text()


# TLS

needs_openssl = pytest.mark.skipif(which("openssl") is None, reason="makes certificates")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and what it has signed for a server and for a client."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign")
    openssl("req", "-x509", *curve, *ca, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl(
            "req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names"),
        )
    return folder


def a_client(folder: Path, name: str | None = None) -> ssl.SSLContext:
    """A client that trusts the authority and may have a certificate."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


@needs_openssl
def test_it_listens_with_tls_and_may_want_certificates(tmp_path: Path, certificates: Path) -> None:
    path, port, log = tmp_path / "b.yaml", free_port(), tmp_path / "log"
    with an_engine() as engine:
        path.write_text(
            f"backends: [{{name: a, url: 'http://127.0.0.1:{engine}'}}]\nport: {port}\n"
            f"tls: {{cert_file: {certificates}/server.pem, key_file: {certificates}/server.key,"
            f" client_ca_file: {certificates}/ca.pem}}\n"
        )
        with a_gateway(path):
            known = a_client(certificates, "client")
            until(is_ready(port, known), log)

            assert ask(port, "/v1/chat/completions", CALL, known)[0] == 200
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(port, "/readyz", tls=a_client(certificates))
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                ask(port, "/readyz")


@needs_openssl
def test_it_speaks_tls_to_backends_and_checks_who_they_are(
    tmp_path: Path, certificates: Path
) -> None:
    path, port, log = tmp_path / "b.yaml", free_port(), tmp_path / "log"
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    tls.load_verify_locations(certificates / "ca.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    with an_engine(tls) as engine:
        url = f"https://localhost:{engine}"
        shown = f"cert_file: {certificates}/client.pem, key_file: {certificates}/client.key"
        path.write_text(
            f"port: {port}\nbackends:\n"
            f"- {{name: good, url: '{url}', tls: {{ca_file: {certificates}/ca.pem, {shown}}}}}\n"
            f"- {{name: distrusting, url: '{url}', model: a, tls: {{{shown}}}}}\n"
            f"- {{name: unknown, url: '{url}', model: b, "
            f"tls: {{ca_file: {certificates}/ca.pem}}}}\n"
        )
        with a_gateway(path):
            until(is_ready(port), log)

            assert ask(port, "/v1/chat/completions", CALL)[0] == 200
            told = json.loads(ask(port, "/admin/backends")[1])["backends"]
            states = {backend["name"]: backend["state"] for backend in told}
            assert states == {"good": "up", "distrusting": "down", "unknown": "down"}


@pytest.mark.parametrize(
    "more",
    [
        "tls: {cert_file: /nope.pem, key_file: /nope.key}",
        "keys_file: /nope.yaml",
    ],
)
def test_files_that_are_not_there_keep_it_from_starting(
    tmp_path: Path, more: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(f"backends: [{{name: a, url: 'http://127.0.0.1:1'}}]\n{more}\n")

    code = subprocess.call([sys.executable, "-m", "gateway", "serve", "--config", str(path)])

    assert code == 1
    told = capfd.readouterr().err
    assert "nope" in told or "No such file" in told
    assert "Traceback" not in told
