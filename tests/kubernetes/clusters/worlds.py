"""A whole control plane in this process, with what registers clusters and follows runs."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from gpuplane.loops.clusters.catalogue import Addon
from tests.faults.inside import Inside
from tests.waiting import wait_until_async

OVER = ("completed", "failed", "cancelled")
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-marks", namespace: "{{ .Release.Namespace }}"}
data: {values: {{ .Values | toJson | quote }}}
"""
"""What a stand-in chart makes: its values, for a test to read."""


def pack(folder: Path, addon: Addon, template: str = CONFIG_MAP) -> None:
    """Write a small chart of an add-on's name and version where charts are looked for."""
    about = f"apiVersion: v2\nname: {addon.chart_name}\nversion: {addon.version}\n"
    files = {"Chart.yaml": about, "templates/marks.yaml": template, "values.yaml": "{}\n"}
    path = folder / f"{addon.chart_name}-{addon.version}.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{addon.chart_name}/{name}")
            entry.size = len(text)
            archive.addfile(entry, BytesIO(text.encode()))


async def register(it: Inside, name: str, kubeconfig: str, **more: Any) -> dict[str, Any]:
    """Register a cluster and return the answer."""
    body = {"name": name, "kubeconfig": kubeconfig, **more}
    answer = await it.client.post("/clusters", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def end_of(it: Inside, run_id: str) -> dict[str, Any]:
    """Return a run once it is over."""

    async def over() -> dict[str, Any] | None:
        run: dict[str, Any] = (await it.client.get(f"/runs/{run_id}")).json()
        return run if run["status"] in OVER else None

    found: dict[str, Any] | None = await wait_until_async(
        over, f"run {run_id} is over", deadline_s=90, interval_s=0.2
    )
    assert found is not None
    return found


async def steps_of(it: Inside, run_id: str) -> dict[str, dict[str, Any]]:
    """Return the steps of a run by key."""
    found = (await it.client.get(f"/runs/{run_id}/steps")).json()["items"]
    return {step["key"]: step for step in found}


async def registered(it: Inside, name: str, kubeconfig: str, **more: Any) -> dict[str, Any]:
    """Register a cluster, wait until it takes work, and return the answer of the registration."""
    made = await register(it, name, kubeconfig, **more)
    run = await end_of(it, made["workflow_id"])
    assert run["status"] == "completed", (run, await steps_of(it, made["workflow_id"]))
    return made
