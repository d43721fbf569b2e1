"""`hexsage emulate`: options, several engines, mistakes, and a clean end."""

import argparse
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from gateway.emulator.command import UsageError, add_arguments, read_engines, run


def parse(*words: str) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_one_engine_with_the_options_of_its_flags() -> None:
    [engine] = read_engines(
        parse(
            *("--gpu", "L40S", "--model", "org/m", "--model", "alias", "--port", "8301"),
            *("--speed", "20", "--scheduling-policy", "priority", "--no-prefix-caching"),
            *("--kv-tokens", "50000", "--max-num-seqs", "8", "--max-num-batched-tokens", "512"),
            *("--max-num-queued-reqs", "6", "--api-key", "k", "--seed", "3"),
            *("--max-model-len", "4096", "--min-chunk-ms", "2", "--allow-faults"),
        )
    )

    assert (engine.name, engine.models, engine.port) == ("L40S", ("org/m", "alias"), 8301)
    assert (engine.speed, engine.seed, engine.min_chunk_s) == (20.0, 3, 0.002)
    assert engine.priority_scheduling
    assert not engine.prefix_caching
    assert engine.allow_faults
    profile = engine.profile
    assert (profile.kv_tokens, profile.max_num_seqs, profile.max_batched_tokens) == (50_000, 8, 512)
    assert (engine.max_num_queued_reqs, engine.api_key) == (6, "k")
    assert engine.context_tokens == 4096


def test_tgi_has_limits_of_its_own() -> None:
    [engine] = read_engines(parse("--kind", "tgi"))
    [limited] = read_engines(
        parse("--kind", "tgi", "--max-num-batched-tokens", "512", "--max-num-queued-reqs", "6")
    )

    assert (engine.profile.block_tokens, engine.profile.max_batched_tokens) == (1, 4096)
    assert engine.max_calls == 128
    assert (limited.profile.max_batched_tokens, limited.max_calls) == (512, 6)


def test_several_engines_differ_in_what_they_say_and_share_the_rest() -> None:
    first, second = read_engines(
        parse(
            *("--engine", "name=a100-0,gpu=A100,port=8301"),
            *("--engine", "gpu=A6000,port=8302,model=other,speed=5,no-prefix-caching"),
            *("--speed", "20", "--model", "m1"),
        )
    )

    assert (first.name, first.profile.name, first.speed) == ("a100-0", "A100-40G", 20.0)
    assert (second.name, second.profile.name, second.speed) == ("A6000", "A6000", 5.0)
    assert (first.models, second.models) == (("m1",), ("other",))
    assert (first.prefix_caching, second.prefix_caching) == (True, False)


def test_the_context_is_no_longer_than_the_cache() -> None:
    [small] = read_engines(parse("--gpu", "L4"))
    [large] = read_engines(parse("--gpu", "H100-80G"))

    assert (small.context_tokens, large.context_tokens) == (34_624, 131_072)


def test_a_model_of_any_size_is_computed_from_the_data_sheet() -> None:
    [engine] = read_engines(parse("--gpu", "H200", "--model-size-b", "70", "--gpus", "2"))

    assert engine.profile.name == "2xH200-141G"


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["--gpu", "Voodoo2"], "no built-in profile for GPU 'Voodoo2'"),
        (["--gpu", "L4", "--model-size-b", "70"], "do not fit"),
        (["--speed", "0"], "speed must be > 0"),
        (["--kv-tokens", "0"], "kv_tokens must be > 0"),
        (["--kv-tokens", "1000", "--max-model-len", "2000"], "does not fit a KV cache"),
        (["--max-num-queued-reqs", "0"], "at least 1"),
        (["--engine", "gpu=A100,prot=8301"], "--engine: unrecognized arguments: --prot=8301"),
        (["--engine", "port=x"], "--engine: argument --port: invalid int value"),
        (["--engine", "port=8301", "--engine", "port=8301"], "a port of its own"),
    ],
)
def test_a_mistake_is_named(words: list[str], mistake: str) -> None:
    with pytest.raises(UsageError, match=mistake):
        read_engines(parse(*words))


def test_a_mistake_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse("--gpu", "Voodoo2")) == 2
    assert "Voodoo2" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(number: int) -> None:
    words = ("--engine", "name=a,port=0", "--engine", "name=b,port=0,gpu=L4", "--speed", "50")
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.emulator", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        urls = [line.split(" at ")[1].split(",")[0] for line in lines]
        for url in urls:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                assert answer.status == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
        process.communicate()

    assert (process.returncode, errors) == (0, "")


def test_a_taken_port_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(parse("--port", str(taken.getsockname()[1]))) == 2

    assert "in use" in capsys.readouterr().err
