"""Small charts as their authors write them, and jobs that are those charts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import AttemptPlan
from gpuplane.core.workloads import ChartRequest, JobType, ResourceRequest
from tests.contract.builders import a_plan

ROOM = ResourceRequest(cpu_milli=1000, memory_mib=512, ephemeral_mib=64)


def deployment(name: str, command: Sequence[str], **container: Any) -> dict[str, Any]:
    """Return a Deployment as a chart's author writes it."""
    labels = {"app": "{{ .Release.Name }}", "part-of": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "{{ .Release.Name }}-" + name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [
                        {"name": name, "image": "app:1", "command": list(command), **container}
                    ]
                },
            },
        },
    }


def write_chart(folder: Path, name: str, objects: Sequence[dict[str, Any]]) -> None:
    """Write a chart whose templates are these objects."""
    templates = folder / name / "templates"
    templates.mkdir(parents=True)
    chart = {"apiVersion": "v2", "name": name, "version": "1.2.3"}
    (folder / name / "Chart.yaml").write_text(json.dumps(chart))
    text = "".join(f"---\n{json.dumps(each)}\n" for each in objects)
    (templates / "all.yaml").write_text(text)


def a_release(node_name: str, chart: str = "shop", **values: object) -> AttemptPlan:
    """Return the plan of a job that is a chart."""
    plan = a_plan(node_name=node_name, job_type=JobType.SERVICE, resources=ROOM, command=())
    asked = ChartRequest(chart, values={"seconds": 600, **values})
    return replace(plan, execution=replace(plan.execution, chart=asked))
