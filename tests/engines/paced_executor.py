"""A vLLM executor in which a step takes a GPU's time instead of a GPU.

vLLM loads the class by its path (`--distributed-executor-backend`). The HTTP server, tokenizer,
scheduler, KV block pool, prefix cache and metrics stay vLLM's own; only the forward pass is
replaced: a step sleeps as long as `gateway.core.profiles` says that it takes, and the tokens are
read off a fixed text. Nothing is loaded and no KV memory allocated, whatever the pool's size.

Not imitated: structured output (the grammar refuses the text: status 500), true logprobs (made up,
in the right shape), LoRA, speculative decoding, async scheduling.

`--additional-config '{"pace": {...}}'` gives the fields of `Pace`. A request may fix the length of
its answer with `vllm_xargs: {"out_len": N}`, the end token not counted.
"""
# This runs where vLLM is installed, which is not where the type checker runs.
# mypy: disable-error-code="import-not-found,misc"

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

PLENTY_BYTES = 1 << 40
"""Memory for the KV cache; `--num-gpu-blocks-override` says how much of it is used."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The constants of a step, as in `GpuProfile`, and how long answers are."""

    prefill_s_per_token: float
    decode_base_s: float
    kv_read_s_per_token: float
    step_overhead_s: float
    speed: float = 1.0
    """2.0: everything takes half as long."""
    mean_tokens: float = 100.0
    """Of answers whose request does not say; exponential, fixed by the prompt."""

    def step_s(self, tokens: int, kv_tokens: int) -> float:
        """Return how long a step takes that schedules and reads so many tokens."""
        work_s = max(self.decode_base_s, self.prefill_s_per_token * tokens)
        return (self.step_overhead_s + work_s + self.kv_read_s_per_token * kv_tokens) / self.speed


class Writing:
    """One request's answer: how much of it is written, and what comes next."""

    def __init__(self, new: Any, pace: Pace, text: list[int]) -> None:
        sampling = new.sampling_params
        prompt = new.prompt_token_ids or []
        random = Random(sha256(repr((prompt, sampling.seed)).encode()).digest())
        asked = (sampling.extra_args or {}).get("out_len")
        length = int(asked) if asked else 1 + int(random.expovariate(1 / pace.mean_tokens))
        self.length = max(length, sampling.min_tokens)
        self.end_token: int | None = sampling.eos_token_id  # None: the request ignores it
        self.rivals: int = -1 if sampling.logprobs is None else max(0, sampling.logprobs)
        self.prompt_tokens = len(prompt)
        self.written = 0
        self.computed: int = new.num_computed_tokens
        self._text = text
        self._start = random.randrange(len(text))

    @property
    def has_all_computed(self) -> bool:
        """The next token can be sampled."""
        return self.computed >= self.prompt_tokens + self.written

    def next_token(self) -> int:
        """Sample a token."""
        self.written += 1
        if self.end_token is not None and self.written > self.length:
            return self.end_token
        return self._text[(self._start + self.written) % len(self._text)]


class DueOutput(Future[Any]):
    """A step's output, which is there at an instant: waiting for it is the step."""

    def __init__(self, output: Any, at: float) -> None:
        super().__init__()
        self._output = output
        self._at = at

    def done(self) -> bool:
        """The instant has come."""
        return _now() >= self._at

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - Future's signature
        """Wait for the instant."""
        time.sleep(max(0.0, self._at - _now()))
        return self._output


class PacedExecutor(Executor):
    """Answers what vLLM's engine core asks of its workers."""

    def _init_executor(self) -> None:
        self._pace = Pace(**self.vllm_config.additional_config["pace"])
        self._vocabulary: int = self.model_config.get_vocab_size()
        tokenizer = Tokenizer.from_file(str(Path(self.model_config.tokenizer) / "tokenizer.json"))
        prose = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
        self._text: list[int] = tokenizer.encode(prose[:300_000], add_special_tokens=False).ids
        self._writing: dict[str, Writing] = {}
        self._free_at = 0.0

    # -- what a worker would say of itself

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,  # noqa: ARG002 - Executor's signature
        args: tuple[Any, ...] = (),  # noqa: ARG002
        kwargs: dict[str, Any] | None = None,  # noqa: ARG002
        non_block: bool = False,
    ) -> Any:
        """Answer for the one worker there would be; most of what is asked needs no doing."""
        answer = self._about_the_worker(str(method))
        if not non_block:
            return [answer]
        future: Future[Any] = Future()
        future.set_result([answer])
        return future

    def _about_the_worker(self, method: str) -> Any:
        match method:
            case "determine_available_memory":
                return PLENTY_BYTES
            case "get_kv_cache_spec":
                block = self.cache_config.block_size
                spec = FullAttentionSpec(
                    block_size=block, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
                )
                return {"model.layers.0.self_attn.attn": spec}
            case "get_supported_kv_cache_layouts":
                return [layout.name for layout in KVCacheLayout]
            case "get_supported_tasks":
                return ("generate",)
            case "compile_or_warm_up_model":
                return CompilationTimes(language_model=0.0, encoder=0.0)
            case "list_loras":
                return set()
            case _:
                return None

    def check_health(self) -> None:
        """Be healthy."""

    def shutdown(self) -> None:
        """Hold nothing."""

    # -- a step

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step; its output comes when the GPU would be done."""
        step = self._begin(scheduler_output)
        return step if non_block else step.result()

    def _begin(self, scheduled: Any) -> DueOutput:
        for request_id in scheduled.finished_req_ids:
            self._writing.pop(request_id, None)
        if not scheduled.total_num_scheduled_tokens:
            return DueOutput(EMPTY_MODEL_RUNNER_OUTPUT, 0.0)
        for new in scheduled.scheduled_new_reqs:
            self._writing[new.req_id] = Writing(new, self._pace, self._text)
        known = scheduled.scheduled_cached_reqs
        for request_id, computed in zip(known.req_ids, known.num_computed_tokens, strict=True):
            self._writing[request_id].computed = computed  # 0 again after a preemption
        batch = [(self._writing[rid], n) for rid, n in scheduled.num_scheduled_tokens.items()]
        kv_tokens = sum(writing.computed for writing, _ in batch)
        sampled = []
        for writing, tokens in batch:
            writing.computed += tokens
            sampled.append([writing.next_token()] if writing.has_all_computed else [])
        ids = list(scheduled.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=self._logprobs(sampled, max(writing.rivals for writing, _ in batch)),
        )
        return DueOutput(output, self._end_of(scheduled.total_num_scheduled_tokens, kv_tokens))

    def _end_of(self, tokens: int, kv_tokens: int) -> float:
        # The overhead of a step is the host's work between two, and the host is real here: what
        # it has needed since the last step is not counted twice.
        earliest = _now() - self._pace.step_overhead_s / self._pace.speed
        self._free_at = max(self._free_at, earliest) + self._pace.step_s(tokens, kv_tokens)
        return self._free_at

    def _logprobs(self, sampled: list[list[int]], rivals: int) -> Any:
        """Return rows of the right shape: the sampled token, then made-up rivals; None: unasked."""
        if rivals < 0:
            return None
        first = np.array([row[0] if row else 0 for row in sampled], dtype=np.int32)
        ranks = np.arange(rivals + 1, dtype=np.int32)
        return LogprobsLists(
            (first[:, None] + ranks) % self._vocabulary,
            np.repeat(-0.5 - ranks.astype(np.float32)[None], len(sampled), axis=0),
            np.ones(len(sampled), dtype=np.int32),
        )


def _now() -> float:
    # The clock of the process that vLLM runs this in; nothing of the gateway is here.
    return time.monotonic()  # noqa: TID251
