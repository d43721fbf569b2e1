"""The chart renders, with everything off and everything on, to what Kubernetes would take."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import __version__
from gateway.config.sources import load_settings
from tests.deploy.places import DEPLOY, document

CHART = DEPLOY / "helm" / "hexsage"
OLDEST_KUBERNETES = "1.27"
CUSTOM = {"ScaledObject", "ServiceMonitor"}
"""Kinds of other projects, for which there is no schema here."""
EVERYTHING: dict[str, Any] = {
    "replicas": 1,
    "imagePullSecrets": [{"name": "pull"}],
    "settings": {"HEXSAGE_QUEUE__MAX_REQUESTS": "500"},
    "allowAnonymous": False,
    "keysSecret": "api-keys",
    "secret": {"values": {"HEXSAGE_ADMIN_KEY": "s3cret"}},
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"a": "b"}, "tlsSecret": "t"},
    "persistence": {"enabled": True, "storageClass": "fast"},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
SCALED = {"autoscaling": {"enabled": True}}
SCALED_BY_KEDA = {"autoscaling": {"enabled": True, "keda": {"enabled": True}}}


def rendered(values: dict[str, Any], release: str = "gw") -> dict[str, dict[str, Any]]:
    """Return the chart's objects by kind."""
    chart = pytest.importorskip("helm_python").Chart
    with chart.load(CHART) as loaded:
        texts = loaded.render(values=values, name=release, namespace="ai")
    documents = [
        content
        for name, text in texts.items()
        if name.endswith(".yaml")
        for content in yaml.safe_load_all(text)
        if content
    ]
    by_kind = {content["kind"]: content for content in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def pod_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("values", [{}, EVERYTHING, SCALED, SCALED_BY_KEDA])
def test_kubernetes_would_take_it(values: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate")
    objects = [one for kind, one in rendered(values).items() if kind not in CUSTOM]
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))

    command = [sys.executable, "-m", "kubernetes_validate", "--strict"]
    words = [*command, "--version", OLDEST_KUBERNETES, str(path)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_off_is_not_rendered() -> None:
    kinds = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"}

    assert set(rendered({})) == kinds
    assert set(rendered(EVERYTHING)) == kinds | {
        "Ingress",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Secret",
        "ServiceMonitor",
    }
    assert set(rendered(SCALED)) == kinds | {"HorizontalPodAutoscaler"}
    assert set(rendered(SCALED_BY_KEDA)) == kinds | {"ScaledObject"}


@pytest.mark.parametrize("values", [{}, EVERYTHING])
def test_the_gateway_takes_the_configuration_and_environment(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(values)
    path = tmp_path / "backends.yaml"
    path.write_text(objects["ConfigMap"]["data"]["backends.yaml"])
    (container,) = pod_of(objects)["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    monkeypatch.setenv("HEXSAGE_HOST", "0.0.0.0")  # the image's
    for name, value in (environment | objects.get("Secret", {}).get("stringData", {})).items():
        monkeypatch.setenv(name, value)

    settings = load_settings(path)

    assert settings.backends
    assert settings.queue.max_requests == (500 if values else 1000)
    assert bool(settings.admin_key) is bool(values)
    assert settings.allow_anonymous is not bool(values)
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert settings.keys_file is None or str(settings.keys_file.parent) in mounts
    grace_s = pod_of(objects)["terminationGracePeriodSeconds"]
    assert grace_s > settings.drain_timeout_s + document(CHART / "values.yaml")["preStopSeconds"]  # type: ignore[operator]  # a number


def test_the_service_finds_the_pods_and_everything_names_the_same_deployment() -> None:
    objects = rendered(EVERYTHING | SCALED | {"persistence": {"enabled": False}})
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]

    for selector in (
        objects["Service"]["spec"]["selector"],
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    selected = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= objects["Service"]["metadata"]["labels"].items()
    target = objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
    assert target == objects["Deployment"]["metadata"]["name"] == "gw-hexsage"
    assert "replicas" not in objects["Deployment"]["spec"]


def test_the_pod_has_no_privileges_and_a_read_only_root() -> None:
    pod = pod_of(rendered({}))
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {mount["mountPath"] for mount in container["volumeMounts"] if "readOnly" not in mount}
    assert written == {"/var/lib/hexsage", "/tmp"}


def test_a_service_called_hexsage_does_not_set_hexsage_port() -> None:
    objects = rendered({}, release="hexsage")

    assert objects["Service"]["metadata"]["name"] == "hexsage"
    assert pod_of(objects)["enableServiceLinks"] is False


def test_a_changed_configuration_starts_new_pods() -> None:
    before, after = (
        rendered({"config": {"backends": [{"name": name, "url": "http://x"}]}}) for name in "ab"
    )
    annotations = [
        one["Deployment"]["spec"]["template"]["metadata"]["annotations"] for one in (before, after)
    ]

    assert annotations[0]["checksum/config"] != annotations[1]["checksum/config"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replica": 2}, "replica"),
        ({"config": {"backends": []}}, "backends"),
        ({"settings": {"PORT": "1"}}, "PORT"),
        ({"allowAnonymous": "yes"}, "allowAnonymous"),
        (SCALED | {"persistence": {"enabled": True}}, "one pod's at a time"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    helm = pytest.importorskip("helm_python")

    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError, match=message):
        chart.render(values=values, name="gw")


def test_helm_has_nothing_to_complain_of() -> None:
    helm = pytest.importorskip("helm_python")

    report = helm.lint(CHART, strict=True)

    assert report["errors"] == []


def test_the_chart_is_of_this_version() -> None:
    assert document(CHART / "Chart.yaml")["appVersion"] == __version__
