"""A job that is a Helm chart, from the request over HTTP to its release and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import SECRET
from tests.faults.inside import QUICK, inside
from tests.kubernetes.backend.charting import deployment, write_chart
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.rigged import RunningCluster


def a_body(**spec: Any) -> dict[str, Any]:
    """Return a request for the chart `shop` on the cluster east."""
    return {
        "name": "b-shop",
        "cluster": "east",
        "job_type": "service",
        "deployment_type": "helm",
        "cpu_cores": 1,
        "memory_gb": 1,
        "max_retries": 0,
        "spec": {"chart": {"name": "shop", **spec}},
    }


async def test_a_chart_is_submitted_runs_is_shown_and_is_uninstalled_when_it_is_cancelled(
    rig: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = tmp_path / "charts"
    write_chart(charts, "shop", [deployment("web", ["/bin/sh", "-c", "exec sleep 600"])])
    large = {"resources": {"requests": {"cpu": "{{ .Values.cpu }}"}}}
    write_chart(charts, "greedy", [deployment("web", ["sleep", "600"], **large)])
    write_chart(charts, "bomb", [])
    line = "{{- $numbers := until 200000000 }}"
    (charts / "bomb" / "templates" / "all.yaml").write_text(line)
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_CHART_MEMORY_MIB", "256")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_HELM", str(rig.binaries["helm"]))
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_CHARTS", str(charts))
    async with inside(tmp_path) as it:
        text = rig.kubeconfig.read_text()
        await registered(it, "east", text, addons=[], admission="embedded")
        values = {"password": "open sesame", "replicas": 1}
        answer = await it.client.post("/jobs", json=a_body(values=values))
        assert answer.status_code == 201, answer.text
        job = answer.json()["id"]
        assert await it.wait_for(job, "running", "failed") == "running"
        shown = (await it.client.get(f"/jobs/{job}")).json()["spec"]["chart"]
        assert shown["values"] == {"password": "********", "replicas": 1}
        [attempt] = (await it.client.get(f"/jobs/{job}/attempts")).json()["items"]
        release = f"b-shop-{attempt['id'][-12:]}"
        ours = {"owner": "helm", "name": release}
        async with KubeClient(rig.connection()) as client:
            [kept] = await client.list(SECRET, "tenant-default", ours)
            assert kept["metadata"]["labels"]["status"] == "deployed"
            assert (await it.client.delete(f"/jobs/{job}")).is_success
            assert await it.wait_for(job, "cancelled", "failed") == "cancelled"
            assert await client.list(SECRET, "tenant-default", ours) == []

        refused = await it.client.post("/jobs", json=a_body(name="nowhere"))
        assert refused.status_code == 422, refused.text
        assert "nowhere" in refused.text
        for path in ("/jobs", "/jobs/estimate"):
            refused = await it.client.post(path, json=a_body(name="bomb"))
            assert refused.status_code == 422, refused.text
            assert refused.json()["field"] == "spec.chart"
            assert "more than 256 MiB of memory" in refused.text
            body = a_body(name="greedy", values={"cpu": 3})
            refused = await it.client.post(path, json=body)
            assert refused.status_code == 422, refused.text
            assert refused.json()["field"] == "cpu_cores"
            assert "3000m of CPU, and the job for 1000m" in refused.text
            answer = await it.client.post(path, json={**body, "cpu_cores": 3, "name": "b-greedy"})
            assert answer.is_success, answer.text
