"""Several choices a call (n > 1): they need KV beside each other."""

from dataclasses import replace

import pytest

from gateway.core.commands import Start
from gateway.core.events import Arrived
from gateway.core.load import BackendLoad
from gateway.core.policies import policy_from_name
from gateway.core.policies.completion import Completion
from gateway.core.scheduler import Scheduler
from tests.builders import a_backend, a_call, a_profile, a_request


def test_every_choice_needs_its_own_kv() -> None:
    load = BackendLoad(a_backend(profile=a_profile(kv_tokens=1000)))
    request = replace(a_request(prompt_tokens=100, answer_tokens=50), further_tokens=150)
    call = a_call(request=request)
    assert load.needed_tokens(call) == 300
    idle = Completion(0.5).scores(a_call("next"), [load], turn=0)

    load.bind(call)
    load.start(call)

    assert (load.reserved_tokens, load.context_tokens) == (300, 300)
    load.progress(call, remaining_tokens=60, seen_tokens=20)
    assert (load.reserved_tokens, load.context_tokens) == (330, 330)
    load.stop(call)
    assert (load.reserved_tokens, load.context_tokens) == (0, 0)
    assert Completion(0.5).scores(a_call("next"), [load], turn=0) == pytest.approx(idle)


def test_a_call_for_thousands_of_choices_does_not_keep_an_engine_from_everybody() -> None:
    huge = replace(a_request("huge", prompt_tokens=100), further_tokens=10**12)
    scheduler = Scheduler(
        [a_backend(profile=a_profile(kv_tokens=10_000))], policy_from_name("hexsage")
    )

    scheduler.handle(Arrived(a_request("first", prompt_tokens=100)), 0.0)
    (start,) = scheduler.handle(Arrived(huge), 1.0)
    assert isinstance(start, Start)
    (start,) = scheduler.handle(Arrived(a_request("next", prompt_tokens=100)), 2.0)
    assert isinstance(start, Start)
