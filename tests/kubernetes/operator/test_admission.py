"""The webhooks as the API server asks them, over TLS, with the chart's configurations."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.kube.errors import KubeError
from gpuplane.kube.kinds import GPU_WORKLOAD
from gpuplane.operator.names import FINALIZER
from rig.certificates import Authority
from tests.kubernetes.accounts import render
from tests.kubernetes.operator.conftest import Bench
from tests.waiting import wait_until_async


@pytest.fixture
async def asked(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """An operator whose webhooks the API server asks about the test's namespace."""
    authority = Authority(tmp_path, "o-webhooks")
    pair = authority.server("operator")
    bundle = base64.b64encode(authority.certificate_pem).decode()
    operator = await bench.start(webhook_port=0, certificate=pair.certificate, private_key=pair.key)
    configurations = [
        each
        for each in render(bench.rig, bench.namespace)
        if each["kind"].endswith("WebhookConfiguration")
    ]
    for each in configurations:
        for hook in each["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            url = f"https://127.0.0.1:{operator.ports['webhooks']}{path}"
            hook["clientConfig"] = {"url": url, "caBundle": bundle}
            # Only about what is the test's own: other tests make objects of these kinds too.
            if "layout" in path:
                hook["objectSelector"] = {"matchLabels": {"pool": bench.namespace}}
            else:
                selector = {"kubernetes.io/metadata.name": bench.namespace}
                hook["namespaceSelector"] = {"matchLabels": selector}
        await bench.admin.create(each)
    await wait_until_async(lambda: _is_asked(bench), "the API server asks the webhooks")
    yield bench
    for each in configurations:
        kind = await bench.admin.kind_of(each)
        await bench.admin.delete(kind, each["metadata"]["name"])


async def _is_asked(bench: Bench) -> bool:
    try:
        await bench.submit("probe", model="unknown")
    except KubeError:
        return True
    await bench.admin.delete(GPU_WORKLOAD, "probe", bench.namespace)
    return False


async def test_defaults_and_the_finalizer_are_there_from_the_first_moment(asked: Bench) -> None:
    made = await asked.submit("w")
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert made["spec"]["vendor"] == "nvidia"
    assert made["spec"]["retryPolicy"] == {"maxRetries": 3, "backoffSeconds": 30}


async def test_a_model_without_an_image_is_refused_with_the_models_that_are_known(
    asked: Bench,
) -> None:
    with pytest.raises(KubeError) as refused:
        await asked.submit("w", model="gpt")
    assert "spec.modelName: there is no image for 'gpt'; known are broken, llama2, quick" in str(
        refused.value
    )


async def test_a_layout_with_a_profile_that_no_gpu_has_is_refused(asked: Bench) -> None:
    layout = {
        "apiVersion": "gpuplane.io/v1alpha1",
        "kind": "MIGLayout",
        "metadata": {"name": f"o-{asked.namespace}", "labels": {"pool": asked.namespace}},
        "spec": {"nodeSelector": {"pool": asked.namespace}, "instances": {"9g.99gb": 1}},
    }
    with pytest.raises(KubeError, match=r"no GPU has the MIG profile '9g\.99gb'"):
        await asked.admin.create(layout)
