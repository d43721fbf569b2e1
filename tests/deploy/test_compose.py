"""docker-compose.yml obeys the Compose specification and fits the files it mounts."""

import argparse
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.sources import load_settings
from gateway.emulator.command import add_arguments, read_engines
from tests.deploy.places import DEPLOY, ROOT

FILE = ROOT / "docker-compose.yml"


@pytest.fixture
def services() -> dict[str, Any]:
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    services: dict[str, Any] = content["services"]
    return services


def test_it_obeys_the_compose_specification() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    folder = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text(encoding="utf-8"))
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))

    jsonschema.validate(content, schema)

    content["services"]["gateway"]["read_onyl"] = True
    with pytest.raises(jsonschema.ValidationError, match="read_onyl"):
        jsonschema.validate(content, schema)


def test_without_a_profile_there_are_the_gateway_and_its_watchers(services: dict[str, Any]) -> None:
    default = {name for name, service in services.items() if "profiles" not in service}

    assert default == {"gateway", "prometheus", "grafana"}


def test_each_profile_adds_what_its_comment_says(services: dict[str, Any]) -> None:
    by_profile = {
        profile: {n for n, service in services.items() if profile in service.get("profiles", ())}
        for profile in ("demo", "gpu")
    }

    assert by_profile == {"demo": {"engines", "loadgen"}, "gpu": {"vllm-0", "vllm-1", "tgi-0"}}


def test_every_port_is_published_on_loopback_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_mounted_file_is_there(services: dict[str, Any]) -> None:
    sources = [
        volume.rpartition("}")[0].rpartition(":-")[2] if "}" in volume else volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
    ]
    mounted = [source for source in sources if source.startswith(".")]

    assert len(mounted) == 4
    assert all((ROOT / source).exists() for source in mounted)


def test_every_image_is_pinned_and_every_container_without_privileges(
    services: dict[str, Any],
) -> None:
    for name, service in services.items():
        assert service["image"].rstrip("}").rpartition(":")[2] not in ("", "latest"), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_the_emulated_engines_are_those_of_backends_yaml(services: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    _, *words = services["engines"]["command"]
    engines = read_engines(parser.parse_args(words))
    listed = load_settings(ROOT / "backends.yaml").backends

    assert services["engines"]["network_mode"] == "service:gateway"
    assert [
        (engine.name, f"http://{engine.host}:{engine.port}", engine.kind, engine.models)
        for engine in engines
    ] == [(entry.name, entry.url, entry.kind, (entry.model,)) for entry in listed]
    assert all(engine.priority_scheduling for engine in engines)
    assert [engine.profile.name for engine in engines] == [e.gpu_profile.name for e in listed]


def test_the_load_test_speaks_of_the_same_gpus(services: dict[str, Any]) -> None:
    words = services["loadgen"]["command"]
    gpus = next(word.partition("=")[2] for word in words if word.startswith("--gpus="))

    listed = load_settings(ROOT / "backends.yaml").backends
    assert gpus.split(",") == [entry.gpu for entry in listed]


def test_the_template_for_gpus_lists_the_services_of_its_profile(services: dict[str, Any]) -> None:
    settings = load_settings(DEPLOY / "compose" / "gpu.yaml")

    assert {entry.name for entry in settings.backends} == {
        name for name, service in services.items() if "gpu" in service.get("profiles", ())
    }
    assert {entry.url.partition("://")[2].partition(":")[0] for entry in settings.backends} == {
        entry.name for entry in settings.backends
    }


def test_a_stopping_gateway_has_the_time_to_drain(services: dict[str, Any]) -> None:
    grace_s = float(services["gateway"]["stop_grace_period"].removesuffix("s"))

    assert grace_s > load_settings(ROOT / "backends.yaml").drain_timeout_s


def test_the_gateway_starts_with_the_environment_that_it_gets(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXSAGE_HOST", "0.0.0.0")
    for name, value in services["gateway"]["environment"].items():
        monkeypatch.setenv(name, value.partition(":-")[2].rstrip("}"))

    settings = load_settings(ROOT / "backends.yaml")

    assert settings.allow_anonymous
    assert not settings.admin_key
