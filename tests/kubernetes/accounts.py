"""Accounts with the rights of a chart and no others: a real API server checks each call."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection
from tests.kubernetes.rigged import RunningCluster

CHARTS = Path(__file__).parents[2] / "charts"
PRODUCT = CHARTS / "gpuplane"
KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
Obj = dict[str, Any]


def run(rig: RunningCluster, program: str, *words: str) -> str:
    """Return what a program of the rig prints; its failure is the test's."""
    command = [rig.binaries[program], *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(rig: RunningCluster, namespace: str, *values: str) -> list[Obj]:
    """Return what the product's chart makes of values; the release has its namespace's name."""
    sets = [word for value in values for word in ("--set", value)]
    text = run(rig, "helm", "template", namespace, str(PRODUCT), "-n", namespace, *sets)
    return [each for each in yaml.safe_load_all(text) if each]


@asynccontextmanager
async def account_of(
    rig: RunningCluster, admin: KubeClient, namespace: str, role: str, *values: str
) -> AsyncIterator[Connection]:
    """Make the account of a role as the chart does, and connect as it; it is gone afterwards."""
    rights = [
        each
        for each in render(rig, namespace, *values)
        if each["kind"] in KINDS
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == role
    ]
    for each in rights:
        await admin.apply(each)
    (name,) = [each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount"]
    kubeconfig = ["--kubeconfig", str(rig.kubeconfig)]
    token = run(rig, "kubectl", "create", "token", name, "-n", namespace, *kubeconfig).strip()
    try:
        yield dataclasses.replace(rig.connection(), token=token)
    finally:
        for each in rights:
            if "namespace" not in each["metadata"]:
                kind = await admin.kind_of(each)
                await admin.delete(kind, each["metadata"]["name"])
