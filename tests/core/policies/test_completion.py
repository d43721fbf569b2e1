"""completion: the default's score, worked out by hand."""

import pytest

from gateway.core.load import BackendLoad
from gateway.core.policies.completion import Completion
from gateway.core.profiles import GpuProfile
from gateway.core.types import PromptSegment
from tests.builders import a_backend, a_call, a_request

GPU = GpuProfile(
    name="round numbers",
    prefill_s_per_token=0.001,
    decode_base_s=0.05,
    kv_read_s_per_token=0.00001,
    step_overhead_s=0.002,
    kv_tokens=100_000,
)
TEMPLATE = (PromptSegment(key=1, tokens=200),)


def a_load(*running: tuple[int, int], prefix: tuple[PromptSegment, ...] = ()) -> BackendLoad:
    """A backend that runs calls of these prompts and answers; all but the last have been read."""
    load = BackendLoad(a_backend(profile=GPU))
    for number, (prompt_tokens, answer_tokens) in enumerate(running):
        call = a_call(
            request=a_request(
                f"running{number}",
                prompt_tokens=prompt_tokens,
                answer_tokens=answer_tokens,
                prefix=prefix,
            )
        )
        load.bind(call)
        load.start(call)
        if number < len(running) - 1:
            load.prefill_done(call)
    return load


@pytest.mark.parametrize(
    ("running", "own_s", "caused_s"),
    [
        pytest.param(
            [],
            # prefill 300 x 1 ms, 40 steps of 2 + 50 ms and of reading 300 tokens
            0.3 + 40 * (0.052 + 0.003),
            0.0,
            id="an idle backend",
        ),
        pytest.param(
            [(1000, 100), (500, 20)],
            # 500 prompt tokens are ahead, three calls read 1620 + 300 tokens a step
            (0.5 + 0.3) + 40 * (0.052 + 0.0192),
            # each of two calls waits for the prefill, and its steps read on average half of in_r
            2 * (0.3 + 0.5 * 40 * 0.00001 * 300),
            id="one that decodes and reads",
        ),
        pytest.param(
            [(10, 10)] * 60,
            # 60 calls of 20 tokens; the last prompt of 10 is being read; 61 ms of arithmetic a step
            (0.01 + 0.3) + 40 * (0.002 + 0.061 + 0.00001 * (1200 + 300)),
            60 * (0.3 + 0.5 * 40 * 0.00001 * 300),
            id="a batch that is bound by arithmetic",
        ),
    ],
)
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_the_score_is_own_completion_and_delay_caused(
    running: list[tuple[int, int]], own_s: float, caused_s: float, alpha: float
) -> None:
    call = a_call(request=a_request(prompt_tokens=300, answer_tokens=40))

    (score,) = Completion(alpha).scores(call, [a_load(*running)], turn=0)

    assert score == pytest.approx(2 * (alpha * own_s + (1 - alpha) * caused_s))


def test_a_prefix_that_is_cached_there_need_not_be_read() -> None:
    call = a_call(request=a_request(prompt_tokens=300, answer_tokens=40, prefix=TEMPLATE))
    warm, cold = a_load((300, 1), prefix=TEMPLATE), a_load((300, 1))

    with_cache, without = Completion(0.5).scores(call, [warm, cold], turn=0)

    # 200 of 300 tokens are read once less, for itself and for the one call that would wait.
    assert without - with_cache == pytest.approx(2 * 0.2)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        Completion(alpha)
