"""Kueue's own example manifests apply unchanged, and the queues in them appear in the API."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import NotThere, ServerTrouble
from gpuplane.kube.kinds import Kind
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster

ARCHIVE = (
    Path(os.environ.get("GPUPLANE_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
    / "imports"
    / "kueue-examples.tar.gz"
)
QUEUE_KINDS = {"ClusterQueue", "LocalQueue", "ResourceFlavor", "Topology", "AdmissionCheck"}
OF_OTHERS = {
    "agents.x-k8s.io",
    "argoproj.io",
    "jobset.x-k8s.io",
    "kubeflow.org",
    "leaderworkerset.x-k8s.io",
    "ray.io",
    "sparkoperator.k8s.io",
    "tekton.dev",
    "workload.codeflare.dev",
}
"""Groups of operators that no part of the product installs; their examples are listed by them."""
OF_NEWER = {"admin/concurrent-admission-setup.yaml"}
"""Names fields that Kueue has since v0.16: an older one refuses the unknown field."""
NO_OBJECTS = {"kind.x-k8s.io"}
"""Configuration of a tool, not objects of a cluster."""

if not ARCHIVE.exists():
    pytest.skip(
        "Kueue's examples are not here; GPUPLANE_DATA names their folder", allow_module_level=True
    )

Object = dict[str, Any]


def load_examples() -> dict[str, list[Object]]:
    """Return the objects of each manifest by its path, as they are."""
    found: dict[str, list[Object]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            if member.name.endswith(".yaml"):
                read = archive.extractfile(member)
                assert read is not None
                documents = yaml.safe_load_all(read.read())
                found[member.name.removeprefix("./")] = [each for each in documents if each]
    return found


EXAMPLES = load_examples()
SETUPS = sorted(
    name
    for name, objects in EXAMPLES.items()
    if any(each["kind"] == "ClusterQueue" for each in objects) and name not in OF_NEWER
)


def group_of(obj: Object) -> str:
    return str(obj["apiVersion"]).rpartition("/")[0]


@pytest.fixture
async def kubectl(rig: RunningCluster) -> AsyncIterator[KubeClient]:
    """Somebody else on the cluster, as `kubectl apply --server-side` is."""
    async with KubeClient(rig.connection(), field_manager="kubectl") as client:
        yield client


async def put(client: KubeClient, obj: Object, *, dry_run: bool = False) -> Object:
    """Apply an object as kubectl does: into `default` where it names no namespace."""
    kind = await client.kind_of(obj)
    metadata = dict(obj["metadata"])
    if kind.namespaced:
        metadata.setdefault("namespace", "default")
    made = {**obj, "metadata": metadata}
    if "name" in metadata:
        return await client.apply(made, force=True, dry_run=dry_run)
    return await client.create(made, metadata.get("namespace"), dry_run=dry_run)


async def take_away(client: KubeClient, made: list[Object]) -> None:
    """Delete objects, last first, and wait until they are gone."""
    for obj in reversed(made):
        kind = await client.kind_of(obj)
        await client.delete(kind, obj["metadata"]["name"], obj["metadata"].get("namespace"))
    for obj in made:
        if obj["kind"] in QUEUE_KINDS:
            await gone(client, await client.kind_of(obj), obj)


async def gone(client: KubeClient, kind: Kind, obj: Object) -> None:
    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    found = await client.find(kind, name, namespace)
    while found is not None:
        version = found["metadata"]["resourceVersion"]
        watching = client.watch(
            kind, namespace, fields={"metadata.name": name}, resource_version=version, timeout_s=20
        )
        async for what, _ in watching:
            if what == "DELETED":
                return
        found = await client.find(kind, name, namespace)


async def test_every_example_applies_but_those_of_other_operators(kubectl: KubeClient) -> None:
    refused: dict[str, str] = {}
    newer: dict[str, str] = {}
    for name, objects in EXAMPLES.items():
        if any(group_of(each) in NO_OBJECTS or each["kind"] == "Namespace" for each in objects):
            continue
        for each in objects:
            try:
                await put(kubectl, each, dry_run=True)
            except NotThere:
                refused[name] = group_of(each)
            except ServerTrouble as error:
                newer[name] = error.message
    assert len(EXAMPLES) >= 70
    assert set(refused.values()) == OF_OTHERS
    assert set(newer) <= OF_NEWER
    assert all("field not declared in schema" in each for each in newer.values())
    served = {name for name in EXAMPLES if name not in refused}
    assert {"jobs/sample-job.yaml", "pods-kueue/kueue-pod-group.yaml",
            "tas/sample-job-required.yaml"} <= served  # fmt: skip


async def test_queues_of_every_example_appear_as_they_were_written(
    world: KueueWorld, kubectl: KubeClient
) -> None:
    seen = 0
    for name in SETUPS:
        made: list[Object] = []
        try:
            for each in EXAMPLES[name]:
                made.append(await put(kubectl, each))
            await look(world)
            seen += await compare(world, made)
        finally:
            await take_away(kubectl, made)
    assert seen >= 2 * len(SETUPS)


async def compare(world: KueueWorld, made: list[Object]) -> int:
    """Compare what somebody wrote with what the API shows; return how many queues there were."""
    quotas = await world.ask("GET", f"/clusters/{world.name}/quotas")
    queues = await world.ask("GET", f"/clusters/{world.name}/queues")
    shown = {each["name"]: each for each in quotas["items"]}
    doors = {(each["namespace"], each["name"]): each for each in queues["items"]}
    count = 0
    for each in made:
        metadata = each["metadata"]
        if each["kind"] == "ClusterQueue":
            told = shown[metadata["name"]]
            assert not told["isDeclared"]
            assert [one["coveredResources"] for one in told["resourceGroups"]] == [
                one["coveredResources"] for one in each["spec"].get("resourceGroups", [])
            ]
            count += 1
        if each["kind"] == "LocalQueue":
            door = doors[metadata["namespace"], metadata["name"]]
            assert door["clusterQueue"] == each["spec"]["clusterQueue"]
            count += 1
    return count


async def look(world: KueueWorld) -> None:
    """Let the loop look at the queues now."""
    world.server.clock.advance(10)
    await world.loops["kueue"].run_once()


async def test_an_example_queue_says_what_it_lacks_and_counts_the_job_that_waits(
    world: KueueWorld, kubectl: KubeClient
) -> None:
    setup = EXAMPLES["admin/single-clusterqueue-setup.yaml"]
    flavors = [each for each in setup if each["kind"] == "ResourceFlavor"]
    made = [await put(kubectl, each) for each in setup if each not in flavors]
    made += [await put(kubectl, each) for each in EXAMPLES["jobs/sample-job.yaml"]]

    async def told() -> dict[str, Any]:
        await look(world)
        shown = await world.ask("GET", f"/clusters/{world.name}/quotas")
        found = next(each for each in shown["items"] if each["name"] == "cluster-queue")
        state: dict[str, Any] = found["cluster"]
        return state

    async def waits() -> bool:
        state = await told()
        return (state["active"], state["reason"], state["pending"]) == (False, "FlavorNotFound", 1)

    async def is_through() -> bool:
        state = await told()
        return (state["active"], state["pending"]) == (True, 0)

    try:
        await world.until(waits, "the queue lacks a flavor and counts the job")
        made += [await put(kubectl, each) for each in flavors]
        await world.until(is_through, "the job went through")
        assert (await told())["reason"] == "Ready"
    finally:
        await take_away(kubectl, made)
