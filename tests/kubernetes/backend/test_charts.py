"""Jobs that are Helm charts, on a real cluster: installed once, whole, and taken away whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.interface import AttemptPlan, BackendError, Phase, Stream, Tombstoned
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.core.reasons import Word
from gpuplane.kube import kinds
from gpuplane.kube.helm import Helm
from tests.contract.factories import replicas_of, until, until_over, until_phase
from tests.contract.kubernetes import KubernetesFactory
from tests.kubernetes.backend.charting import a_release, deployment, write_chart
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

SERVER = (
    "import http.server; print('serving', flush=True);"
    "http.server.HTTPServer(('', 18412), http.server.SimpleHTTPRequestHandler).serve_forever()"
)
MADE = (kinds.DEPLOYMENT, kinds.JOB, kinds.SERVICE, kinds.SECRET, kinds.CONFIG_MAP, kinds.POD)


def objects_of_chart() -> list[dict[str, Any]]:
    """Return a server, a database beside it, a set-up before both, and a port."""
    name = {"name": "{{ .Release.Name }}"}
    probe = {"tcpSocket": {"port": 18412}, "periodSeconds": 1}
    hook = {"helm.sh/hook": "pre-install", "helm.sh/hook-delete-policy": "hook-succeeded"}
    return [
        deployment("web", ["python3", "-c", SERVER], readinessProbe=probe),
        deployment("db", ["/bin/sh", "-c", "exec sleep {{ .Values.seconds }}"]),
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "{{ .Release.Name }}-setup", "annotations": hook},
            "spec": {
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "setup", "image": "b", "command": ["/bin/true"]}],
                    }
                }
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": name,
            "spec": {"selector": {"part-of": "web"}, "ports": [{"port": 18412}]},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"a": "{{`{{`}} b"}},
    ]


@pytest.fixture
def charts(factory: KubernetesFactory, rig: RunningCluster, tmp_path: Path) -> Path:
    """The server's folder of charts."""
    folder = tmp_path / "charts"
    write_chart(folder, "shop", objects_of_chart())
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "all-of-it"},
    }
    write_chart(folder, "greedy", [*objects_of_chart(), role])
    factory.charts = ChartTools(helm=str(rig.binaries["helm"]), folder=str(folder), wait_s=60)
    return folder


def labels_of(plan: AttemptPlan) -> dict[str, str]:
    """Return the label by which the objects of an attempt are found."""
    return {names.ATTEMPT_ID: str(plan.ref.attempt_id)}


async def made_by(backend: KubernetesBackend, plan: AttemptPlan) -> list[str]:
    """Return everything of an attempt but its record."""
    found = []
    for kind in MADE:
        for each in await backend.client.list(kind, labels=labels_of(plan)):
            if names.RECORD not in each["metadata"]["labels"]:
                found.append(f"{kind.kind} {each['metadata']['name']}")
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    for each in await backend.client.list(kinds.SECRET, labels={"owner": "helm", "name": name}):
        found.append(f"release {each['metadata']['name']}")
    return found


async def test_a_chart_runs_as_a_release_is_ready_and_goes_whole_when_it_is_evicted(
    factory: KubernetesFactory, charts: Path, rig: RunningCluster
) -> None:
    backend = await factory.open()
    plan = a_release(factory.node_name)
    await backend.ensure_workload(plan, {"TOKEN": "open sesame"})
    seen = await until(
        factory,
        backend,
        lambda now: [r for r in replicas_of(now, plan.ref) if r.ready],
        "every pod of the release is ready",
    )
    [replica] = replicas_of(seen, plan.ref)
    rendered = f"a-job-{plan.job_id.hex[-12:]}"
    assert replica.phase is Phase.RUNNING
    assert replica.node_name == factory.node_name
    assert replica.url == f"http://{rendered}.tenant-default.svc:18412"
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    helm = Helm(rig.connection(), binary=rig.binaries["helm"], home=charts.parent / "helm")
    release = await helm.status(name, "tenant-default")
    assert release is not None
    assert (release.status, release.revision) == ("deployed", 1)
    parts = {**labels_of(plan), names.PART: "helper"}
    [written] = await backend.client.list(kinds.CONFIG_MAP, labels=parts)
    assert written["data"] == {"a": "{{ b"}
    pods = await backend.client.list(kinds.POD, labels=labels_of(plan))
    assert {pod["spec"]["nodeName"] for pod in pods} == {factory.node_name}
    assert sorted(pod["metadata"]["labels"].get(names.RANK, "-") for pod in pods) == ["-", "0"]

    await backend.ensure_workload(plan, {"TOKEN": "open sesame"})
    again = await helm.status(name, "tenant-default")
    assert again is not None
    assert again.revision == 1

    await backend.evict(plan.ref, 1.0, Word.CANCELLED)
    [over] = await until_over(factory, backend, plan.ref)
    assert over.reason == Word.CANCELLED
    assert await helm.status(name, "tenant-default") is None

    left: list[str] = []

    async def count_left() -> bool:
        left[:] = await made_by(backend, plan)
        return not left

    await wait_until_async(count_left, "the cluster has collected the rest")


async def test_output_and_commands_reach_the_container_that_the_chart_names(
    factory: KubernetesFactory, charts: Path
) -> None:
    script = ["/bin/sh", "-c", "echo up; exec sleep 600"]
    write_chart(charts, "one", [deployment("shop-window", script)])
    backend = await factory.open()
    plan = a_release(factory.node_name, "one")
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    done = await backend.exec(plan.ref, 0, ("/bin/sh", "-c", "exit 4"), b"", 20)
    assert done.exit_code == 4
    chunk = await backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 100)
    assert chunk.data == b"up\n"
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    await until_over(factory, backend, plan.ref)


async def test_a_chart_that_reaches_beyond_its_namespace_leaves_nothing_behind(
    factory: KubernetesFactory, charts: Path
) -> None:
    backend = await factory.open()
    plan = a_release(factory.node_name, "greedy")
    with pytest.raises(BackendError, match=r"spec.chart: the chart makes ClusterRole all-of-it"):
        await backend.ensure_workload(plan, {})
    assert await made_by(backend, plan) == []


async def test_a_chart_that_takes_too_much_memory_to_render_is_refused_before_it_has_it(
    factory: KubernetesFactory, charts: Path, rig: RunningCluster
) -> None:
    write_chart(charts, "bomb", [])
    line = "{{- $numbers := until 200000000 }}\nkind: ConfigMap\n"
    (charts / "bomb" / "templates" / "all.yaml").write_text(line)
    helm, taken = charts.parent / "helm-that-counts", charts.parent / "taken"
    helm.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, resource, subprocess, sys\n"
        "given = sys.stdin.buffer.read()\n"
        f"ended = subprocess.run([{str(rig.binaries['helm'])!r}, *sys.argv[1:]], input=given,\n"
        "    close_fds=False)\n"
        "taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        f"own = pathlib.Path({str(rig.binaries['helm'])!r}).stat().st_size\n"
        f"pathlib.Path({str(taken)!r}).write_text(f'{{own}} {{taken}}')\n"
        "sys.exit(ended.returncode)\n"
    )
    helm.chmod(0o755)
    factory.charts = ChartTools(str(helm), str(charts), memory_mib=256)
    backend = await factory.open()
    plan = a_release(factory.node_name, "bomb")
    with pytest.raises(BackendError) as refused:
        await backend.check_chart(plan)
    assert refused.value.word == Word.START_REFUSED
    assert "spec.chart: rendering it takes more than 256 MiB of memory" in refused.value.message
    own, most = taken.read_text().split()
    assert int(most) << 10 < (256 << 20) + int(own)


async def test_a_chart_that_was_evicted_first_is_never_installed(
    factory: KubernetesFactory, charts: Path
) -> None:
    backend = await factory.open()
    plan = a_release(factory.node_name)
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    with pytest.raises(Tombstoned):
        await backend.ensure_workload(plan, {})
    assert await made_by(backend, plan) == []


async def test_a_chart_whose_objects_the_cluster_refuses_is_refused_in_its_words_and_goes(
    factory: KubernetesFactory, charts: Path
) -> None:
    broken = deployment("web", ["/bin/true"])
    broken["spec"]["selector"] = {"matchLabels": {"app": "another"}}
    written = [each for each in objects_of_chart()[2:] if each["kind"] != "Job"]
    write_chart(charts, "broken", [*written, broken])  # nothing of it is to be waited for
    backend = await factory.open()
    plan = a_release(factory.node_name, "broken")
    with pytest.raises(BackendError, match=r"spec.chart: the cluster refuses it: .*selector"):
        await backend.ensure_workload(plan, {})
    [over] = await until_over(factory, backend, plan.ref)
    assert over.reason == Word.START_REFUSED
