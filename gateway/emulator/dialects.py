"""The kinds of engine there are to emulate."""

from gateway.emulator.vllm import VllmDialect

DIALECTS = {"vllm": VllmDialect}
