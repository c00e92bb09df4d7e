"""Webhooks of a cluster that do not answer: named with what to do, and the start goes on after."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from gpuplane.backends.interface import Phase, Unavailable
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.workloads import ResourceRequest
from gpuplane.kube.kinds import VALIDATING_WEBHOOK
from tests.contract.builders import a_plan
from tests.contract.factories import replicas_of, until, until_over
from tests.contract.kubernetes import KubernetesFactory

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)


@contextlib.asynccontextmanager
async def silent_webhook(
    factory: KubernetesFactory, backend: KubernetesBackend, group: str, plural: str
) -> AsyncIterator[str]:
    """Have the cluster ask a webhook that nobody serves about objects of this backend alone."""
    name = f"{plural}.{factory.cluster_id}.test"
    rule = {
        "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": [plural],
    }  # fmt: skip
    hook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "clientConfig": {"url": "https://127.0.0.1:1/nobody"},
        "objectSelector": {"matchLabels": {names.CLUSTER: factory.cluster_id}},
        "rules": [rule],
    }
    config = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [hook],
    }
    await backend.client.create(config)
    try:
        yield name
    finally:
        await backend.client.delete(VALIDATING_WEBHOOK, name)


async def refusal_of(backend: KubernetesBackend, seconds: float) -> str:
    """Return what is said of a start that a webhook hinders: it may take until it is asked."""
    for _ in range(100):
        plan = a_plan(node_name="contract-processes", resources=SMALL, duration_s=seconds)
        try:
            await backend.ensure_workload(plan, {})
        except Unavailable as error:
            return error.message
    raise AssertionError("the webhook was never asked")


async def test_a_start_behind_a_silent_webhook_says_which_and_goes_on_once_it_is_gone(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    async with silent_webhook(factory, backend, "batch", "jobs") as name:
        said = await refusal_of(backend, 0)
        assert f'The webhook "{name}" (127.0.0.1) of the cluster does not answer' in said
        assert "connection refused" in said
        assert "Look after" in said
        plan = a_plan(node_name=factory.node_name, resources=SMALL)
        with pytest.raises(Unavailable):
            await backend.ensure_workload(plan, {})
    await backend.ensure_workload(plan, {})
    assert (await until_over(factory, backend, plan.ref))[0].exit_code == 0


async def test_pods_that_a_silent_webhook_keeps_from_being_made_are_told_and_come_once_it_is_gone(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    async with silent_webhook(factory, backend, "", "pods") as name:
        plan = a_plan(node_name=factory.node_name, resources=SMALL)
        await backend.ensure_workload(plan, {})
        seen = await until(
            factory,
            backend,
            lambda now: [r for r in replicas_of(now, plan.ref) if "FailedCreate" in r.message],
            "why it has no pod is told",
        )
        [replica] = replicas_of(seen, plan.ref)
        assert replica.phase is Phase.STARTING
        assert f'The webhook "{name}"' in replica.message
    assert (await until_over(factory, backend, plan.ref))[0].exit_code == 0
