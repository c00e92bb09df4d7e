"""A rig from start to end: nodes, a job that Kueue admits, its log, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rig.api import Api
from rig.binaries import BinariesUnavailable, find_binaries
from rig.rigs import Rig, RigPlan, find_rig, running_rig
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
PLAN = RigPlan(nodes=[("h100", 1), ("gaudi", 1)], process_nodes=[("h100", 1)])
GPU = "nvidia.com/gpu"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    try:
        find_binaries()
    except BinariesUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def own_rig(_programs: None) -> Any:
    with running_rig(PLAN) as rig:
        yield rig


@pytest.fixture
def api(own_rig: Rig) -> Any:
    api = own_rig.manager.api()
    yield api
    api.close()


def a_pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"rig.gpuplane.io/kind": "process"},
            "containers": [container],
            **spec,
        },
    }


def status_of(api: Api, name: str) -> dict[str, Any]:
    pod = api.find(f"{PODS}/{name}")
    return {} if pod is None else pod["status"]


def wait_for_phase(api: Api, name: str, *phases: str) -> dict[str, Any]:
    wait_until(lambda: status_of(api, name).get("phase") in phases, f"{name} is {phases}")
    return status_of(api, name)


def log_of(api: Api, name: str, **options: str) -> str:
    # Not through Api: a log is text, and only these tests read one.
    with api.access.client() as client:
        return client.get(f"{PODS}/{name}/log", params=options).text


def test_nodes_of_both_kinds_are_ready(api: Api) -> None:
    def ready() -> set[str]:
        nodes = (api.find("/api/v1/nodes") or {"items": []})["items"]
        return {
            node["metadata"]["name"]
            for node in nodes
            for one in node["status"].get("conditions") or []
            if one["type"] == "Ready" and one["status"] == "True"
        }

    expected = {"h100-1", "gaudi-1", "process-h100-1"}
    wait_until(lambda: ready() == expected, "all nodes are Ready")


def test_a_job_admitted_by_kueue_runs_on_a_process_node_and_its_log_is_read_back(api: Api) -> None:
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    resources = [{"name": GPU, "nominalQuota": 4}]
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "any", "resources": resources}]}]
    queue = {"namespaceSelector": {}, "resourceGroups": groups}
    api.apply(kueue | {"kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}})
    api.apply(kueue | {"kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": queue})
    api.apply(
        kueue
        | {"kind": "LocalQueue", "metadata": {"name": "mine"}, "spec": {"clusterQueue": "all"}}
    )
    container = {"resources": {"limits": {GPU: 2}}}
    template = {"spec": a_pod("x", "echo ran on $NODE", container=container)["spec"]}
    template["spec"]["containers"][0]["env"] = [
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    ]
    meta = {"name": "admitted", "labels": {"kueue.x-k8s.io/queue-name": "mine"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta}
    api.create(job | {"spec": {"suspend": True, "template": template}})

    path = "/apis/batch/v1/namespaces/default/jobs/admitted"
    wait_until(lambda: (api.find(path) or {})["status"].get("succeeded") == 1, "the job ended")

    pods = (api.find(PODS) or {"items": []})["items"]
    name = next(p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith("admitted"))
    assert log_of(api, name) == "ran on process-h100-1\n"


def test_a_failing_container_says_its_exit_code_and_both_its_streams(api: Api) -> None:
    api.create(a_pod("fails", "echo out; echo err >&2; exit 3"))
    status = wait_for_phase(api, "fails", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert sorted(log_of(api, "fails").split()) == ["err", "out"]


def test_volumes_are_folders_that_containers_of_a_pod_share(api: Api) -> None:
    mount = [{"name": "shared", "mountPath": "/shared"}]
    first = {"name": "first", "image": "busybox", "volumeMounts": mount}
    first["command"] = ["sh", "-c", "echo prepared > /shared/file"]
    pod = a_pod(
        "shares",
        "cat /shared/file",
        container={"volumeMounts": mount},
        volumes=[{"name": "shared", "emptyDir": {}}],
        initContainers=[first],
    )
    api.create(pod)
    wait_for_phase(api, "shares", "Succeeded")
    assert log_of(api, "shares", container="main") == "prepared\n"


def test_a_claim_of_the_default_class_keeps_what_a_pod_wrote_for_the_next(api: Api) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"}}
    api.create(claim | {"spec": spec})
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "kept"}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/kept"}]}
    for name, script in (("writes", "echo safe > /kept/file"), ("reads", "cat /kept/file")):
        api.create(a_pod(name, script, container=mount, volumes=[volume]))
        wait_for_phase(api, name, "Succeeded")
    assert log_of(api, "reads") == "safe\n"


def test_an_image_that_does_not_exist_backs_off(api: Api) -> None:
    api.create(a_pod("no-image", "true", container={"image": "does-not-exist/model:1"}))

    def waits() -> str:
        statuses = status_of(api, "no-image").get("containerStatuses") or [{"state": {}}]
        return statuses[0]["state"].get("waiting", {}).get("reason", "")

    wait_until(lambda: waits() == "ImagePullBackOff", "the image backs off")
    assert status_of(api, "no-image")["phase"] == "Pending"


def test_a_container_over_its_memory_limit_is_oom_killed(api: Api) -> None:
    script = f"exec {sys.executable} -c 'import time; x = b\"x\" * 2**26; time.sleep(60)'"
    limit = {"resources": {"limits": {"memory": "32Mi"}}}
    api.create(a_pod("greedy", script, container=limit))
    status = wait_for_phase(api, "greedy", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_a_deleted_pod_is_asked_to_end_and_is_gone_with_its_processes(
    api: Api, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    # Kubernetes makes one dollar of two, so the shell's own id takes four.
    told = f"trap 'echo asked > {said}; exit 0' TERM; echo $$$$ > {tmp_path}/pid"
    script = f"{told}; while :; do sleep 0.05; done"
    api.create(a_pod("ends", script))
    wait_for_phase(api, "ends", "Running")
    pid = int(wait_until(lambda: read_if_there(tmp_path / "pid"), "the pod's process runs"))
    api.delete(f"{PODS}/ends")
    wait_until(lambda: api.find(f"{PODS}/ends") is None, "the pod is gone")
    assert said.read_text() == "asked\n"
    assert not Path("/proc", str(pid)).exists()


def test_a_crashing_container_is_restarted_and_its_previous_log_kept(api: Api) -> None:
    pod = a_pod("crashes", "echo once; exit 1")
    pod["spec"]["restartPolicy"] = "Always"
    api.create(pod)

    def restarts() -> int:
        statuses = status_of(api, "crashes").get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0))

    wait_until(lambda: restarts() >= 1, "the container was restarted")
    assert log_of(api, "crashes", previous="true") == "once\n"


def test_the_api_server_killed_and_started_again_still_has_everything(
    own_rig: Rig, api: Api
) -> None:
    server = own_rig.manager.parts["kube-apiserver"]
    server.kill()
    assert not api.is_ready()
    server.start_again()
    assert api.find("/api/v1/nodes/h100-1") is not None
    api.create(a_pod("after", "echo back"))
    wait_for_phase(api, "after", "Succeeded")


@pytest.mark.parametrize("ending", ["down", "killed"])
def test_a_rig_kept_by_hand_leaves_nothing(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "rig"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rig", *words, "--folder", str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    started = run("up", "--no-kueue", "--nodes", "", "--process-nodes", "cpu=1")
    assert "manager: " in started.stdout, started.stderr
    again = run("up")
    assert again.stdout == started.stdout  # the one that runs, not another
    state = find_rig(folder)
    assert state is not None
    os.kill(state["parts"]["manager"]["kwok"], signal.SIGKILL)
    wait_until(lambda: "manager/kwok ended; its log: " in run("status").stdout, "its end is said")
    try:
        assert processes_of(folder)
    finally:
        if ending == "killed":
            os.kill(state["pid"], signal.SIGKILL)
        else:
            assert run("down").stdout == "stopped\n"
    wait_until(lambda: processes_of(folder) == [], "every process of the rig ended")
    assert run("status").returncode == 1
    if ending == "down":
        assert list(folder.iterdir()) == []


def read_if_there(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and str(folder).encode() in command:
            found.append(int(entry.name))
    return found
