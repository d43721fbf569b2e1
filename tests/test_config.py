"""Settings: the order of their sources, and every mistake named with its place."""

from pathlib import Path

import pytest

from gateway.config import ConfigError, Settings, load_settings
from gateway.config_file import YamlFile
from gateway.core.admission import Unreachable
from gateway.core.profiles import built_in
from gateway.core.types import BackendId

LEAST = "backends:\n  - {name: a, url: 'http://127.0.0.1:8001'}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "backends.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(tmp_path: Path, text: str) -> list[str]:
    """Return what is wrong with a file, without its path."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_settings(path)
    return [mistake.replace(str(path), "file") for mistake in error.value.mistakes]


def test_a_backend_needs_a_name_and_a_url_and_nothing_else(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, LEAST))

    (entry,) = settings.backends
    backend = entry.to_core(frozenset({"m"}), kv_tokens=1234)
    assert (backend.id, backend.models) == (BackendId("a"), frozenset({"m"}))
    assert backend.profile.kv_tokens == 1234
    assert settings.policy.to_core().name == "hexsage"
    assert settings.is_loopback


def test_without_a_file_everything_has_a_default() -> None:
    assert load_settings(None).port == 8080


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


def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, LEAST + "queue: {max_requests: 1, timeout_s: 1}\nport: 1\n")
    monkeypatch.setenv("HEXSAGE_QUEUE__MAX_REQUESTS", "2")
    monkeypatch.setenv("HEXSAGE_PORT", "2")

    settings = load_settings(path, {"port": 3})

    assert settings.port == 3
    assert (settings.queue.max_requests, settings.queue.timeout_s) == (2, 1)
    assert settings.queue.max_bytes == Settings.model_fields["queue"].default.max_bytes


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


def test_a_server_of_several_models_may_be_several_backends(tmp_path: Path) -> None:
    text = "backends:\n" + "".join(
        f"  - {{name: {name}, url: 'http://h', model: {name}}}\n" for name in ("a", "b")
    )

    assert len(load_settings(written(tmp_path, text)).backends) == 2


def test_every_mistake_is_listed_with_its_line(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """backends:
  - name: a
    url: ftp://x
    gpuu: L4
  - name: b
    gpu: Z9
    api_key_env: HEXSAGE_TEST_UNSET
queue:
  max_requests: many
policy: {name: zzz}
colour: red
""",
    )

    lines = sorted(int(mistake.split(":")[1]) for mistake in found)
    assert lines == [3, 4, 5, 6, 7, 9, 10, 11]
    assert "file:4: backends[0].gpuu: is no key that HexSage knows" in found
    assert "file:5: backends[1].url: is missing" in found
    assert "file:11: colour: is no key that HexSage knows" in found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "file:1: must hold keys such as `backends:`"),
        ("[]", "file:1: must hold keys such as `backends:`"),
        ("backends: [", "file:1: is not YAML"),
        ("port: 8080\nbackends: !secret x", "file:2: is not YAML"),
        ("port: 2020-13-45", "file: holds a value that is none: month must be in 1..12"),
        ("port: " + "9" * 5000, "file: holds a value that is none"),
        ("port: &a [*a]", "file: is nested too deeply"),
        ("port: " + "[" * 5000, "file: is nested too deeply"),
        ("port: 8080\n1: 2", "file:2: 1 is no text: put the key in quotes"),
        ("models:\n  ? [a]\n  : {target: b}", "file:2: "),
        ("a: 1\na: 2\n", "file:2: a is given twice"),
        (LEAST + LEAST[10:], "file:3: backends[1].name: 'a' is used twice"),
        (
            LEAST + "  - {name: b, url: 'http://127.0.0.1:8001/v1/'}\n",
            "file:3: backends[1].url: 'b' and 'a' are one engine: its memory would count twice",
        ),
        ("models: {a: {target: b}, b: {target: c}}", "file:1: models.a.target: 'b' is itself"),
        (
            "workflows:\n  w:\n    stages: [{name: a, depends_on: [b]}]\n",
            "file:2: workflows.w: stage 'a' of workflow 'w' depends on 'b'",
        ),
        ("backends: [{name: a, url: 'http://169.254.169.254/'}]", "must not be link-local"),
        ("health: {window: 1}", "file:1: health.window: "),
        ("health: {stall_s: 1}", "file:1: health.stall_s: "),
        ("models: {a: {}}", "file:1: models.a: needs a target, or timeouts"),
        ("models: {a: {timeouts: {total_s: 0}}}", "file:1: models.a.timeouts.total_s: "),
        (
            "backends: [{name: a, url: 'http://h', timeouts: {queue_s: 1}}]",
            "file:1: backends[0].timeouts.queue_s: is no key",
        ),
        ("retries: {max_attempts: 0}", "file:1: retries.max_attempts: "),
        ("limits: {max_json_depth: 255}", "file:1: limits.max_json_depth: "),
        ("limits: {max_connections: 0}", "file:1: limits.max_connections: "),
        ("host: 0.0.0.0\n", "file:1: host: 0.0.0.0 is reachable from outside"),
        ("policy: {alpha: 2}\n", "file:1: policy.alpha: "),
        ("backends: [{name: a, url: 'http://u:p@h'}]", "must have no user, password"),
        ("backends: [{name: a, url: 'http://h', kind: nope}]", "backends[0].kind: "),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in mistake for mistake in mistakes(tmp_path, text))


def test_what_the_environment_got_wrong_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEXSAGE_QUEUE__TIMEOUT_S", "-1")
    monkeypatch.setenv("HEXSAGE_COLOUR", "red")

    with pytest.raises(ConfigError) as error:
        load_settings(None)

    assert sorted(mistake.partition(":")[0] for mistake in error.value.mistakes) == [
        "HEXSAGE_COLOUR",
        "HEXSAGE_QUEUE__TIMEOUT_S",
    ]


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "nope.yaml")


def test_bytes_that_are_no_text_are_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_bytes(b"\xff\xfe")

    assert YamlFile.read(path).mistakes == [f"{path}: is not UTF-8 text"]


def test_an_admin_key_shows_in_no_printout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXSAGE_ADMIN_KEY", "top-secret")

    assert "top-secret" not in repr(load_settings(None))


def test_the_repositorys_own_file_is_sound() -> None:
    assert load_settings(Path(__file__).parent.parent / "backends.yaml").backends


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("gpu: H200", "the model's size must be given (model_size_b)"),
        ("gpu: L4, model_size_b: 70", "do not fit 1 x L4"),
        ("gpu: L4, gpus: 2", "gpus and weight_bits need model_size_b"),
        ("gpu: L4, weight_bits: 4", "gpus and weight_bits need model_size_b"),
    ],
)
def test_a_gpu_that_cannot_hold_the_model_is_a_mistake(
    tmp_path: Path, keys: str, told: str
) -> None:
    (mistake,) = mistakes(tmp_path, f"backends:\n  - {{name: a, url: 'http://a', {keys}}}\n")

    assert mistake.startswith("file:2: backends[0]: ")
    assert told in mistake


def test_a_profile_is_computed_for_the_model_and_the_gpus_it_is_split_over(tmp_path: Path) -> None:
    keys = "gpu: H100, model_size_b: 70, weight_bits: 8, gpus: 4"
    path = written(tmp_path, f"backends:\n  - {{name: a, url: 'http://a', {keys}}}\n")

    assert load_settings(path).backends[0].gpu_profile == built_in("H100", 70, 8, 4)
