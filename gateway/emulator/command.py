"""`hexsage emulate`: the command line of emulated engines."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

import uvloop

from gateway.core.profiles import GpuProfile, built_in
from gateway.emulator.dialects import DIALECTS
from gateway.emulator.options import EngineOptions
from gateway.emulator.server import EmulatorServer, serving

DESCRIPTION = """\
Serve engines that are not there: vLLM's API or TGI's, with the timing of a modelled GPU. Answers
are words from a list. Time is scaled: at --speed 20 everything takes a twentieth of its time on the
wall; x-emulator-speed in each answer says so, and seconds in /metrics are the engine's own,
unscaled."""
DEFAULT_GPU = "A100-80G"
DEFAULT_MODEL = "m1"
DEFAULT_PORT = 8001
TGI_BLOCK_TOKENS = 1
"""With flashinfer, its default."""
TGI_BATCH_PREFILL_TOKENS = 4096
"""Its --max-batch-prefill-tokens by default."""


class UsageError(Exception):
    """The command line makes no sense."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hexsage emulate`."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add(
        "--engine",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="one engine of several in this process; keys are option names, such as "
        "name=a6000-0,gpu=A6000,port=8003; the other options hold for every engine that does not "
        "say otherwise",
    )
    add("--kind", choices=sorted(DIALECTS), default="vllm")
    add("--name", help="what the start-up line calls it (default: the GPU)")
    add("--gpu", default=DEFAULT_GPU, help="built-in profile (default: %(default)s)")
    add(
        "--model-size-b", type=float, help="billions of parameters: a profile by data sheet instead"
    )
    add("--weight-bits", type=int, help="with --model-size-b (default: 16)")
    add("--gpus", type=int, default=1, help="with --model-size-b: GPUs of the engine (default: 1)")
    add(
        "--model",
        action="append",
        metavar="NAME",
        help=f"served model name; repeat for aliases (default: {DEFAULT_MODEL})",
    )
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")
    add("--speed", type=float, default=1.0, help="engine seconds a wall second (default: 1)")
    add("--seed", type=int, default=0, help="decides answer lengths and made-up ids")
    add("--kv-tokens", type=int, help="KV cache in tokens, instead of the profile's")
    add("--max-num-seqs", type=int, help="sequences in a batch at most")
    add("--max-num-batched-tokens", type=int, help="tokens in a step at most")
    add("--max-model-len", type=int, help="prompt and answer together at most, in tokens")
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    add("--no-prefix-caching", action="store_true")
    add(
        "--max-num-queued-reqs",
        type=int,
        help="refuse beyond so many requests, running included; in TGI: --max-concurrent-requests",
    )
    add("--api-key", help="what clients must send as a bearer token under /v1")
    add(
        "--min-chunk-ms",
        type=float,
        default=5.0,
        help="wall time between two writes to a stream, at least; tokens in between are merged, "
        "as vLLM does when the reader lags (default: %(default)g)",
    )
    add("--no-auto-tool-choice", action="store_true", help="refuse tool_choice auto, as vLLM does")
    add("--enable-request-id-headers", action="store_true", help="echo x-request-id")
    add("--allow-faults", action="store_true", help="take orders to misbehave: /emulator/faults")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    try:
        engines = read_engines(args)
        uvloop.run(_serve(engines))
    except (UsageError, OSError) as error:
        sys.stderr.write(f"hexsage emulate: {error}\n")
        return 2
    return 0


def read_engines(args: argparse.Namespace) -> list[EngineOptions]:
    """Return the engines that the command line asks for; UsageError says what is wrong with it."""
    engines = [_options(_engine_args(args, text)) for text in args.engine] or [_options(args)]
    ports = [engine.port for engine in engines if engine.port]
    if len(ports) != len(set(ports)):
        raise UsageError("every engine needs a port of its own")
    return engines


def _engine_args(args: argparse.Namespace, text: str) -> argparse.Namespace:
    """Parse `gpu=A6000,port=8003` as if it were the command line; what it omits is as in `args`."""
    parser = _Parser(add_help=False)
    add_arguments(parser)
    own = argparse.Namespace(**{**vars(args), "engine": [], "name": None})
    words: list[str] = []
    for pair in text.split(","):
        key, separator, value = pair.partition("=")
        name = key.strip().replace("_", "-")
        words.append(f"--{name}={value}" if separator else f"--{name}")
        if name == "model":
            own.model = None
    return parser.parse_args(words, own)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"--engine: {message}")


def _options(args: argparse.Namespace) -> EngineOptions:
    try:
        return EngineOptions(
            name=args.name or args.gpu,
            profile=_profile(args),
            models=tuple(args.model or [DEFAULT_MODEL]),
            host=args.host,
            port=args.port,
            kind=args.kind,
            speed=args.speed,
            seed=args.seed,
            priority_scheduling=args.scheduling_policy == "priority",
            prefix_caching=not args.no_prefix_caching,
            max_model_len=args.max_model_len,
            max_num_queued_reqs=args.max_num_queued_reqs,
            api_key=args.api_key,
            min_chunk_s=args.min_chunk_ms / 1000,
            auto_tool_choice=not args.no_auto_tool_choice,
            request_id_headers=args.enable_request_id_headers,
            allow_faults=args.allow_faults,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _profile(args: argparse.Namespace) -> GpuProfile:
    try:
        profile = built_in(args.gpu, args.model_size_b, args.weight_bits, args.gpus)
    except KeyError as error:
        raise UsageError(error.args[0]) from None
    if args.kind == "tgi":
        profile = replace(
            profile, block_tokens=TGI_BLOCK_TOKENS, max_batched_tokens=TGI_BATCH_PREFILL_TOKENS
        )
    changes = {
        "kv_tokens": args.kv_tokens,
        "max_num_seqs": args.max_num_seqs,
        "max_batched_tokens": args.max_num_batched_tokens,
    }
    return replace(profile, **{name: value for name, value in changes.items() if value is not None})


async def _serve(engines: Sequence[EngineOptions]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(engines) as server:
        sys.stdout.writelines(_start_up_lines(server))
        sys.stdout.flush()
        await stop.wait()


def _start_up_lines(server: EmulatorServer) -> Iterable[str]:
    for port, engine in server.app.engines.items():
        options = engine.options
        yield (
            f"{options.name}: emulated {options.kind} with {', '.join(options.models)} on "
            f"{options.profile.name} at http://{options.host}:{port}, {options.speed:g} times as "
            "fast\n"
        )
