"""The charts: linted, rendered under several values, and taken by a real API server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.extender.rights import RIGHTS as EXTENDER_RIGHTS
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import Kind
from gpuplane.kube.rights import Right, list_granted, list_needed
from gpuplane.operator.rights import RIGHTS as OPERATOR_RIGHTS
from rig.binaries import Binaries
from tests.kubernetes.rigged import RunningCluster

CHARTS = Path(__file__).parents[3] / "charts"
PRODUCT, SERVICE = CHARTS / "gpuplane", CHARTS / "service"
Obj = dict[str, Any]

ALL = ["extender.enabled=true", "extender.autoscaling.enabled=true", "extender.bind=true",
       "clusterAccess.enabled=true", "clusterAccess.token=true",
       "server.ingress.enabled=true", "server.ingress.host=gpu.example.org",
       "server.ingress.tlsSecret=tls", "server.database.existingSecret=db",
       "operator.provisioningClass=best-effort-atomic-scale-up.autoscaling.x-k8s.io",
       "operator.models.llama2=registry.example/llama2:1", "operator.queue=team"]  # fmt: skip
PRODUCT_VALUES: dict[str, list[str]] = {
    "as they are": [],
    "everything": ALL,
    "nothing kept": ["server.persistence.enabled=false", "operator.webhooks.enabled=false"],
    "a server with TLS and Helm": ["server.tls.existingSecret=tls",
                                   "server.helm.image=registry.example/helm:4"],
    "operator alone": ["server.enabled=false", "operator.replicas=1"],
    "operator of one team": ["operator.namespaces={kube-public}", "operator.nodeLabels.pool=team",
                             "operator.migLayouts=false"],
    "extender alone over TLS": ["server.enabled=false", "operator.enabled=false",
                                "extender.enabled=true", "extender.tls.existingSecret=tls",
                                "extender.tls.clientCA=true"],
    "a certificate that is there": ["operator.webhooks.certificate=existing",
                                    "operator.webhooks.existingSecret=tls",
                                    "operator.webhooks.caBundle=Zm9v"],
}  # fmt: skip
SERVICE_VALUES: dict[str, list[str]] = {
    "an image alone": ["image=registry.example/x:1"],
    "GPUs and a port": ["image=x", "port=8080", "gpu.count=2", "shmSize=1Gi", "replicas=3",
                        "probe.path=/health", "command={serve,--fast}"],
    "another maker's GPU": ["image=x", "gpu.resource=amd.com/gpu", "gpu.count=1",
                            "env.A=b", "env.N=1"],
    "as little as can be allowed": ["image=x", "security.runAsNonRoot=true",
                                    "security.runAsUser=1000",
                                    "security.readOnlyRootFilesystem=true"],
    "scaled": ["image=x", "port=80", "autoscaling.enabled=true", "autoscaling.maxReplicas=5"],
}  # fmt: skip
REFUSED = [
    (PRODUCT, ["image.repositry=x"], "repositry"),
    (PRODUCT, ["operator.replicas=0"], "replicas"),
    (PRODUCT, ["operator.namespaces={Team_A}"], "namespaces"),
    (PRODUCT, ["operator.namespaces={a,a}"], "namespaces"),
    (PRODUCT, ["server.settings.GPUPLANE_lower=1"], "GPUPLANE_lower"),
    (PRODUCT, ["operator.webhooks.certificate=none"], "certificate"),
    (PRODUCT, ["server.ingress.enabled=true"], "host"),
    (PRODUCT, ["server.helm.path=helm"], "path"),
    (SERVICE, [], "image"),
    (SERVICE, ["image=x", "gpu.count=-1"], "count"),
    (SERVICE, ["image=x", "gpu.resource=gpu"], "resource"),
]


def helm(binaries: Binaries, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binaries["helm"], *words], capture_output=True, text=True, check=False)


def render(
    binaries: Binaries, chart: Path, values: list[str], namespace: str = "o-ns"
) -> list[Obj]:
    sets = [word for value in values for word in ("--set", value)]
    done = helm(binaries, "template", "rel", str(chart), "-n", namespace, *sets)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def pods_of(objects: list[Obj]) -> list[Obj]:
    return [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]


@pytest.mark.parametrize("chart", [PRODUCT, SERVICE], ids=lambda chart: str(chart.name))
def test_the_charts_pass_helms_own_rules(rig_binaries: Binaries, chart: Path) -> None:
    sets = ["--set", "image=x"] if chart == SERVICE else []
    done = helm(rig_binaries, "lint", "--strict", str(chart), *sets)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("chart", "values", "field"), REFUSED)
def test_values_that_cannot_be_are_refused_by_field(
    rig_binaries: Binaries, chart: Path, values: list[str], field: str
) -> None:
    sets = [word for value in values for word in ("--set", value)]
    done = helm(rig_binaries, "template", "rel", str(chart), *sets)
    assert done.returncode != 0
    assert field in done.stderr


@pytest.mark.parametrize("values", PRODUCT_VALUES.values(), ids=PRODUCT_VALUES)
async def test_the_api_server_takes_what_the_product_renders(
    rig: RunningCluster, namespace: str, values: list[str]
) -> None:
    objects = render(rig.binaries, PRODUCT, values, namespace)
    assert await names_taken(rig, objects) == [each["metadata"]["name"] for each in objects]


@pytest.mark.parametrize("values", SERVICE_VALUES.values(), ids=SERVICE_VALUES)
async def test_the_api_server_takes_what_a_service_renders(
    rig: RunningCluster, namespace: str, values: list[str]
) -> None:
    objects = render(rig.binaries, SERVICE, values, namespace)
    assert await names_taken(rig, objects) == [each["metadata"]["name"] for each in objects]


async def names_taken(rig: RunningCluster, objects: list[Obj]) -> list[str]:
    """Return the names of what the API server would have made; it refuses with an exception."""
    async with KubeClient(rig.connection()) as client:
        taken = [await client.apply(each, dry_run=True) for each in objects]
    return [each["metadata"]["name"] for each in taken]


async def test_a_namespace_that_allows_only_the_restricted_takes_every_pod_of_the_product(
    rig: RunningCluster,
) -> None:
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = rig.namespace(enforced)
    async with KubeClient(rig.connection()) as client:
        specs = pods_of(render(rig.binaries, PRODUCT, ALL, namespace))
        assert len(specs) == 3
        for number, spec in enumerate(specs):
            account = spec.pop("serviceAccountName")
            await client.apply({"apiVersion": "v1", "kind": "ServiceAccount",
                                "metadata": {"name": account, "namespace": namespace}})  # fmt: skip
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"p{number}", "namespace": namespace},
                "spec": {**spec, "serviceAccountName": account},
            }
            await client.create(pod, dry_run=True)
        await client.delete(Kind("", "v1", "namespaces", "Namespace", namespaced=False), namespace)


def test_every_role_runs_as_nobody_with_nothing_and_is_probed(rig_binaries: Binaries) -> None:
    specs = pods_of(render(rig_binaries, PRODUCT, ALL))
    assert len(specs) == 3
    assert len({spec["serviceAccountName"] for spec in specs}) == 3
    for spec in specs:
        security = spec["securityContext"]
        assert (security["runAsUser"], security["runAsNonRoot"]) == (65532, True)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"livenessProbe", "readinessProbe"} <= container.keys()
        assert container["resources"]["requests"]


def test_every_role_has_a_budget_and_a_policy_that_select_its_pods(rig_binaries: Binaries) -> None:
    objects = render(rig_binaries, PRODUCT, ALL)
    for deployment in (each for each in objects if each["kind"] == "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
            selected = [
                each
                for each in objects
                if each["kind"] == kind
                and each["spec"][field]["matchLabels"].items() <= labels.items()
            ]
            assert len(selected) == 1, (kind, deployment["metadata"]["name"])


def granted_to(objects: list[Obj], account: str, namespace: str | None) -> list[Obj]:
    """Return the rules of the roles that are bound to an account, in a namespace or everywhere."""
    kind = "ClusterRole" if namespace is None else "Role"
    bound = {
        each["roleRef"]["name"]
        for each in objects
        if each["kind"] == f"{kind}Binding"
        and each["metadata"].get("namespace") == namespace
        and any(subject["name"] == account for subject in each["subjects"])
    }
    return [
        rule
        for each in objects
        if each["kind"] == kind
        and each["metadata"].get("namespace") == namespace
        and each["metadata"]["name"] in bound
        for rule in each["rules"]
    ]


@pytest.mark.parametrize(
    ("role", "rights", "values", "options"),
    [
        ("operator", OPERATOR_RIGHTS, [], {"migLayouts"}),
        ("operator", OPERATOR_RIGHTS, ["operator.migLayouts=false"], set()),
        (
            "operator",
            OPERATOR_RIGHTS,
            ["operator.provisioningClass=x"],
            {"migLayouts", "provisioningClass"},
        ),
        ("extender", EXTENDER_RIGHTS, [], set()),
        ("extender", EXTENDER_RIGHTS, ["extender.bind=true"], {"bind"}),
    ],
)
@pytest.mark.parametrize("served", [[], ["team-a", "team-b", "o-ns"]], ids=["all", "named"])
def test_each_role_is_granted_the_calls_that_it_makes_where_it_makes_them_and_no_others(
    rig_binaries: Binaries,
    role: str,
    rights: tuple[Right, ...],
    values: list[str],
    options: set[str],
    served: list[str],
) -> None:
    named = [f"operator.namespaces={{{','.join(served)}}}"] if served else []
    objects = render(rig_binaries, PRODUCT, ["extender.enabled=true", *values, *named])
    used = [right for right in rights if not right.option or right.option in options]
    narrowed = served if role == "operator" else []
    for namespace in (None, "o-ns", "team-a", "team-b", "team-c"):
        needed = [
            right
            for right in used
            if (namespace is None and not right.is_own and not (narrowed and right.is_narrowed))
            or (namespace in narrowed and right.is_narrowed)
            or (namespace == "o-ns" and right.is_own)
        ]
        granted = granted_to(objects, f"rel-gpuplane-{role}", namespace)
        assert list_granted(granted) == list_needed(needed), namespace


def test_webhooks_of_an_operator_are_asked_about_the_namespaces_that_it_serves(
    rig_binaries: Binaries,
) -> None:
    values = ["operator.namespaces={team-a}", "operator.migLayouts=false"]
    hooks = [
        hook
        for each in render(rig_binaries, PRODUCT, values)
        if each["kind"].endswith("WebhookConfiguration")
        for hook in each["webhooks"]
    ]
    asked = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a"]}
    assert len(hooks) == 2
    for hook in hooks:
        assert hook["namespaceSelector"] == {"matchExpressions": [asked]}


def test_the_server_has_no_rights_in_the_cluster_that_it_runs_in(rig_binaries: Binaries) -> None:
    objects = render(rig_binaries, PRODUCT, ALL)
    for namespace in (None, "o-ns"):
        assert granted_to(objects, "rel-gpuplane-server", namespace) == []
    (server,) = [
        each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"].endswith("-server")
    ]
    assert server["automountServiceAccountToken"] is False


def test_an_upgrade_keeps_the_keys_and_names_stay_within_their_limits(
    rig_binaries: Binaries,
) -> None:
    objects = render(rig_binaries, PRODUCT, [f"fullnameOverride={'x' * 60}"])
    (claim,) = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert max(len(each["metadata"]["name"]) for each in objects) <= 63


def test_the_arguments_of_every_role_are_options_that_it_has(rig_binaries: Binaries) -> None:
    from gpuplane.entry.commands import up
    from gpuplane.entry.extending import extender
    from gpuplane.entry.operating import operator

    commands = {"up": up, "operator": operator, "extender": extender}
    narrowed = ["operator.namespaces={a}", "operator.nodeLabels.b=c", "operator.migLayouts=false"]
    for spec in pods_of(render(rig_binaries, PRODUCT, [*ALL, *narrowed])):
        name, *words = spec["containers"][0]["args"]
        known = {option for each in commands[name].params for option in each.opts}
        given = {word.split("=")[0] for word in words if word.startswith("--")}
        assert given
        assert given <= known
