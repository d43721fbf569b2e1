"""What a backend's engine teaches about its profile, and what it must not teach."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.calibration import Calibration
from gateway.core.call import Call
from gateway.core.corrections import MAX_FACTOR
from gateway.core.cost import unloaded_s
from gateway.core.events import Finished
from gateway.core.lengths import LengthDistribution
from gateway.core.policies import policy_from_name
from gateway.core.profiles import GpuProfile, built_in
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, RequestId
from gateway.sim.engine import EngineModel
from gateway.sim.simulator import MODEL, Arrival, Run, simulate
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow
from tests.builders import a_profile, a_request


def slowed(profile: GpuProfile, prefill: float, decode: float) -> GpuProfile:
    return replace(
        profile,
        prefill_s_per_token=profile.prefill_s_per_token * prefill,
        decode_base_s=profile.decode_base_s * decode,
        kv_read_s_per_token=profile.kv_read_s_per_token * decode,
    )


class Watched:
    """A calibration of `a_profile()` that is told of calls: 1 ms a prompt token, 100 ms a step."""

    def __init__(self) -> None:
        self.calibration = Calibration(a_profile())
        self._calls: dict[str, Call] = {}

    def start(
        self,
        name: str,
        at: float,
        *,
        fresh_tokens: int = 1000,
        output_tokens: int = 10,
        streams: bool = True,
        is_crowded: bool = False,
    ) -> None:
        request = a_request(
            name,
            prompt_tokens=fresh_tokens,
            answer_tokens=output_tokens,
            reports_first_token=streams,
        )
        call = Call(
            request=request, sequence=1, arrived_at=at, came_at=at, output_tokens=output_tokens
        )
        call.fresh_tokens = fresh_tokens
        self._calls[name] = call
        self.calibration.started(call, at, is_crowded=is_crowded)

    def first(self, name: str, at: float) -> None:
        self.calibration.first_token(self._calls[name], at)

    def finish(self, name: str, at: float, cached_tokens: int | None = None) -> None:
        call = self._calls.pop(name)
        finished = Finished(
            RequestId(name),
            call.output_tokens,
            prompt_tokens=call.request.prompt_tokens,
            cached_tokens=cached_tokens,
        )
        self.calibration.ended(call, at, finished)

    def break_off(self, name: str, at: float) -> None:
        self.calibration.ended(self._calls.pop(name), at, None)

    @property
    def samples(self) -> tuple[int, int]:
        return self.calibration.prefill.samples, self.calibration.decode.samples

    @property
    def learned(self) -> tuple[float, float]:
        return self.calibration.prefill.learned, self.calibration.decode.learned


def repeat(story: Callable[[Watched, float], None], times: int = 60) -> Watched:
    watched = Watched()
    for number in range(times):
        story(watched, number * 1000.0)
    return watched


def test_a_lone_streamed_call_teaches_both_constants() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("x", at, fresh_tokens=1000, output_tokens=11)
        watched.first("x", at + 2.0)
        watched.finish("x", at + 2.0 + 10 * 0.05)

    assert repeat(story).learned == pytest.approx((2.0, 0.5), rel=0.05)


def test_calls_that_read_their_prompts_one_after_the_other_are_measured_together() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("x", at, fresh_tokens=1000, output_tokens=2)
        watched.start("y", at + 0.5, fresh_tokens=1000, output_tokens=2)
        watched.first("x", at + 2.0)
        watched.first("y", at + 4.0)
        watched.finish("x", at + 4.1)
        watched.finish("y", at + 4.2)

    watched = repeat(story)
    assert watched.learned[0] == pytest.approx(2.0, rel=0.05)
    assert watched.samples == (60, 0)


def test_others_prompts_do_not_make_decoding_look_slow() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("x", at, output_tokens=41)
        watched.first("x", at + 1.0)
        watched.start("y", at + 2.0, fresh_tokens=2000, output_tokens=2)  # one step of 2 s
        watched.first("y", at + 4.05)
        watched.finish("y", at + 4.15)
        watched.finish("x", at + 1.0 + 38.5 * 0.1 + 2.05)

    watched = repeat(story)
    assert watched.learned[1] == pytest.approx(1.0, rel=0.03)
    assert watched.samples[1] == 60


def test_a_long_wait_in_a_crowded_engine_teaches_nothing() -> None:
    watched = Watched()

    watched.start("x", 0.0, output_tokens=50)
    watched.first("x", 1.0)
    watched.start("y", 1.0, output_tokens=2, is_crowded=True)
    watched.first("y", 100.0)
    watched.finish("x", 200.0)
    watched.finish("y", 300.0)

    assert watched.samples == (1, 0)


def test_a_call_that_broke_spoils_what_it_took_part_in() -> None:
    watched = Watched()

    watched.start("x", 0.0)
    watched.start("y", 0.1)
    watched.break_off("y", 0.5)
    watched.first("x", 9.0)
    watched.finish("x", 10.0)

    assert watched.samples[0] == 0


def test_what_the_engine_had_cached_is_taken_off() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("x", at, fresh_tokens=2000, output_tokens=2)
        watched.first("x", at + 1.0)
        watched.finish("x", at + 1.1, cached_tokens=1000)

    assert repeat(story).learned[0] == pytest.approx(1.0, rel=0.01)


def test_short_prompts_say_nothing_of_prefill() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("x", at, fresh_tokens=50, output_tokens=2)
        watched.first("x", at + 5.0)
        watched.finish("x", at + 5.1)

    assert repeat(story).samples[0] == 0


@pytest.mark.parametrize(
    ("fresh_tokens", "output_tokens", "took_s", "learned"),
    [
        pytest.param(50, 101, 0.1 + 100 * 0.2, (1.0, 2.0), id="mostly writing"),
        pytest.param(8000, 2, 16.0, (2.0, 1.0), id="mostly reading"),
        pytest.param(1000, 11, 4.0, (2.0, 2.0), id="half and half"),
        pytest.param(50, 3, 4.0, (1.0, 1.0), id="too short to tell"),
    ],
)
def test_a_silent_call_teaches_each_constant_by_its_part(
    fresh_tokens: int, output_tokens: int, took_s: float, learned: tuple[float, float]
) -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start(
            "x", at, fresh_tokens=fresh_tokens, output_tokens=output_tokens, streams=False
        )
        watched.finish("x", at + took_s)

    assert repeat(story).learned == pytest.approx(learned, rel=0.1)


def test_a_silent_call_that_may_have_waited_teaches_nothing() -> None:
    watched = Watched()

    watched.start("x", 0.0, output_tokens=50, streams=False)
    watched.start("y", 1.0, output_tokens=50, streams=False, is_crowded=True)
    watched.finish("x", 200.0)
    watched.finish("y", 300.0)

    assert watched.samples == (0, 0)


def test_a_silent_prompt_that_may_be_under_way_is_not_taken_for_slowness() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("silent", at, fresh_tokens=2000, streams=False)
        watched.start("x", at + 0.1, fresh_tokens=1000, output_tokens=20)
        watched.first("x", at + 3.0)
        watched.finish("x", at + 5.0)
        watched.break_off("silent", at + 6.0)

    assert repeat(story).samples == (0, 0)


def test_other_constants_in_the_configuration_begin_anew() -> None:
    def story(watched: Watched, at: float) -> None:
        watched.start("x", at, output_tokens=2)
        watched.first("x", at + 2.0)
        watched.finish("x", at + 2.1)

    calibration = repeat(story).calibration
    assert calibration.profile.prefill_s_per_token > 0.0018

    calibration.configure(a_profile(kv_tokens=5000))
    assert calibration.profile.prefill_s_per_token > 0.0018
    assert calibration.profile.kv_tokens == 5000

    calibration.configure(a_profile(slowness=3.0))
    assert calibration.profile == a_profile(slowness=3.0)


Step = tuple[str, int, float, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "silent", "first", "finish", "break", "crowded"]),
        st.integers(0, 5),
        st.floats(0, 1e6),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_the_profile_stays_valid_and_bounded(steps: list[Step]) -> None:
    watched = Watched()
    present: set[str] = set()
    now = 0.0
    for what, number, later, tells in steps:
        now += later
        name = f"r{number}"
        if what in {"start", "silent", "crowded"} and name not in present:
            present.add(name)
            watched.start(name, now, streams=what != "silent", is_crowded=what == "crowded")
        elif what == "first" and name in present:
            watched.first(name, now)
        elif what == "finish" and name in present:
            present.discard(name)
            watched.finish(name, now, cached_tokens=10**6 if tells else None)
        elif what == "break" and name in present:
            present.discard(name)
            watched.break_off(name, now)

    profile, configured = watched.calibration.profile, watched.calibration.configured
    for constant in ("prefill_s_per_token", "decode_base_s"):
        factor = getattr(profile, constant) / getattr(configured, constant)
        assert factor * (1 + 1e-9) >= 1 / MAX_FACTOR
        assert factor <= MAX_FACTOR * (1 + 1e-9)


# Against a modelled engine


def serve(
    believed: GpuProfile,
    true: GpuProfile,
    *,
    count: int,
    gap_s: float,
    policy: str = "hexsage",
    learns: bool = True,
    streams: bool = True,
) -> tuple[Scheduler, Run]:
    """Serve single calls of mixed sizes on one backend."""
    backend = Backend(id=BackendId("b"), models=frozenset({MODEL}), profile=believed)
    scheduler = Scheduler([backend], policy_from_name(policy), learns_profiles=learns)
    arrivals = []
    for number in range(count):
        call = TraceCall(
            stage="s",
            prompt_tokens=200 + 397 * number % 4000,
            output_tokens=5 + 37 * number % 200,
        )
        workflow = TraceWorkflow(name=SINGLE, steps=(TraceStep(calls=(call,)),))
        arrivals.append(Arrival(id=f"w{number}", at=number * gap_s, workflow=workflow))
    run = simulate(
        arrivals,
        scheduler,
        {backend.id: EngineModel(true)},
        lambda call: LengthDistribution.point(call.output_tokens),
        streams=streams,
    )
    return scheduler, run


@pytest.mark.parametrize(("prefill", "decode"), [(2.0, 2.0), (0.5, 0.5), (2.0, 0.5)])
def test_fifty_calls_halve_an_error_of_two(prefill: float, decode: float) -> None:
    believed = built_in("A100")
    true = slowed(believed, prefill, decode)

    scheduler, _ = serve(believed, true, count=50, gap_s=3.0)

    profile = scheduler.fleet.loads[BackendId("b")].profile
    for constant in ("prefill_s_per_token", "decode_base_s"):
        error = getattr(profile, constant) / getattr(true, constant)
        assert 2**-0.5 < error < 2**0.5
    assert scheduler.fleet.reference(MODEL) == replace(profile, name="average")


@pytest.mark.parametrize("policy", ["hexsage", "least_backlog+fcfs"])
@pytest.mark.parametrize(
    "gap_s",
    [
        pytest.param(5.0, id="idle"),
        pytest.param(1.5, id="busy"),
        pytest.param(0.2, id="overloaded"),
    ],
)
def test_a_right_profile_is_left_alone_whatever_the_load(policy: str, gap_s: float) -> None:
    believed = built_in("A100")

    scheduler, _ = serve(believed, believed, count=300, gap_s=gap_s, policy=policy)

    assert scheduler.fleet.loads[BackendId("b")].profile == believed


@pytest.mark.parametrize(("prefill", "decode"), [(2.0, 2.0), (0.5, 0.5), (2.0, 1.0), (1.0, 2.0)])
@pytest.mark.parametrize("gap_s", [pytest.param(60.0, id="idle"), pytest.param(4.0, id="busy")])
def test_calls_that_do_not_stream_teach_too(prefill: float, decode: float, gap_s: float) -> None:
    believed = built_in("A100")
    true = slowed(believed, prefill, decode)

    scheduler, _ = serve(believed, true, count=200, gap_s=gap_s, streams=False)

    profile = scheduler.fleet.loads[BackendId("b")].profile
    assert profile.prefill_s_per_token == pytest.approx(true.prefill_s_per_token, rel=0.35)
    assert profile.decode_base_s == pytest.approx(true.decode_base_s, rel=0.3)
    whole_s = unloaded_s(profile, 2000, 2000, 100)
    assert whole_s == pytest.approx(unloaded_s(true, 2000, 2000, 100), rel=0.1)


@pytest.mark.parametrize("gap_s", [5.0, 1.5, 0.2])
def test_a_right_profile_stays_nearly_right_without_streams(gap_s: float) -> None:
    believed = built_in("A100")

    scheduler, _ = serve(believed, believed, count=300, gap_s=gap_s, streams=False)

    profile = scheduler.fleet.loads[BackendId("b")].profile
    assert profile.prefill_s_per_token == pytest.approx(believed.prefill_s_per_token, rel=0.12)
    assert profile.decode_base_s == pytest.approx(believed.decode_base_s, rel=0.12)


def test_a_scheduler_that_does_not_learn_keeps_what_it_was_told() -> None:
    believed = built_in("A100")

    scheduler, _ = serve(believed, slowed(believed, 2, 2), count=50, gap_s=3.0, learns=False)

    load = scheduler.fleet.loads[BackendId("b")]
    assert load.profile == believed
    assert load.calibration.prefill.samples == 0
