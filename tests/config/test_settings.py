"""Settings: every key is taken, and bounded; what follows from several."""

from pathlib import Path

import pytest

from gateway.config.sources import load_settings
from gateway.core.admission import Unreachable
from tests.config.files import LEAST, mistakes, written


def test_every_key_of_the_contract_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A100_KEY", "secret")
    settings = load_settings(
        written(
            tmp_path,
            """
backends:
  - name: a100-0
    url: http://127.0.0.1:8001
    kind: vllm
    model: m1
    gpu: A100-80G
    max_in_flight: 16
    priority_scheduling: true
    api_key_env: A100_KEY
    weight: 2
  - name: odd
    url: http://127.0.0.1:8002/v1
    kind: openai
    profile: {prefill_tokens_per_s: 5000, decode_base_s: 0.02, kv_tokens: 50000}
models:
  gpt-x: {target: m1}
policy: {name: hexgen, alpha: 0.25}
slo: {default_deadline_ms: 30000}
workflows:
  text2sql:
    deadline_ms: 60000
    stages:
      - {name: link}
      - {name: generate, depends_on: [link], fan_out: 2, max_repeats: 3}
queue: {max_requests: 7, timeout_s: 12, max_predicted_s: 90, on_unreachable_deadline: reject}
timeouts: {connect_s: 1, first_token_s: 2, inter_token_s: 3, total_s: 4}
health: {interval_s: 1, timeout_s: 0.5, failures: 7, ramp_s: 0}
limits: {max_body_bytes: 1000, max_header_bytes: 2000, max_json_depth: 5}
retries: {max_attempts: 2, burst: 9}
admin: {host: 0.0.0.0, port: 9000}
tls: {cert_file: c.pem, key_file: k.pem}
state_dir: state
keys_file: keys.yaml
decision_log: decisions.jsonl
drain_timeout_s: 5
drain_grace_s: 2
""",
        )
    )

    first, odd = settings.backends
    assert first.api_key == "secret"
    assert first.to_core(frozenset()).max_in_flight == 16
    assert odd.gpu_profile.prefill_s_per_token == pytest.approx(1 / 5000)
    assert odd.gpu_profile.name == "odd"
    assert settings.aliases == {"gpt-x": "m1"}
    assert settings.workflow_specs["text2sql"].deadline_s == 60
    limits = settings.queue.to_core()
    assert (limits.max_requests, limits.timeout_s) == (7, 12)
    assert (limits.max_predicted_s, limits.max_model_share) == (90, 1)
    assert limits.on_unreachable_deadline is Unreachable.REJECT
    rules = settings.health.to_core()
    assert (rules.failures, rules.ramp_s) == (7, 0)
    assert (settings.retries.to_core().max_attempts, settings.retries.to_core().burst) == (2, 9)
    assert settings.is_loopback
    assert not settings.is_admin_loopback


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("health: {window: 1}", "file:1: health.window: "),
        ("health: {stall_s: 1}", "file:1: health.stall_s: "),
        ("models: {a: {}}", "file:1: models.a: needs a target, or timeouts"),
        ("models: {a: {timeouts: {total_s: 0}}}", "file:1: models.a.timeouts.total_s: "),
        ("retries: {max_attempts: 0}", "file:1: retries.max_attempts: "),
        ("limits: {max_json_depth: 255}", "file:1: limits.max_json_depth: "),
        ("limits: {max_connections: 0}", "file:1: limits.max_connections: "),
        ("policy: {alpha: 2}\n", "file:1: policy.alpha: "),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in mistake for mistake in mistakes(tmp_path, text))


def test_an_alias_has_the_timeouts_of_its_model_where_it_says_nothing(tmp_path: Path) -> None:
    text = """
models:
  m1: {timeouts: {total_s: 1, queue_s: 2}}
  same: {target: m1}
  other: {target: m1, timeouts: {total_s: 3, connect_s: 4}}
  far: {target: m2}
"""
    settings = load_settings(written(tmp_path, LEAST + text))

    assert settings.aliases == {"same": "m1", "other": "m1", "far": "m2"}
    assert settings.model_timeouts == {
        "m1": {"total_s": 1},
        "same": {"total_s": 1},
        "other": {"total_s": 3, "connect_s": 4},
        "far": {},
    }
    assert settings.queue_timeouts == {"m1": 2, "same": 2, "other": 2}


def test_an_admin_key_shows_in_no_printout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXSAGE_ADMIN_KEY", "top-secret")

    assert "top-secret" not in repr(load_settings(None))
